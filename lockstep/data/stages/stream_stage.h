// What stages of a stream have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/stages/stage_digest.h"
#include "lockstep/data/stages/stage_times.h"
#include "lockstep/data/stream.h"

namespace lockstep::internal::inline data {

/// Streams of which it is known whether they end say so by this.
class MaybeEndless {
 public:
  virtual bool is_endless() const = 0;

 protected:
  ~MaybeEndless() = default;
};

/// Whether a pass over the stream has no end, as far as that is known: not of generators and of sources of the
/// program's own.
inline bool is_endless(const lockstep::data::StreamSource& source) {
  const auto* const known = dynamic_cast<const MaybeEndless*>(&source);
  return known != nullptr && known->is_endless();
}

/// A stage that passes on what it does not change. A stage whose elements are not those of its upstream one by one
/// cannot be read in shards: it overrides num_shards().
class StreamStage : public lockstep::data::StreamSource, public MaybeEndless {
 public:
  explicit StreamStage(const lockstep::data::Stream& upstream) : upstream_(upstream.source()) {}
  int64_t num_shards() const override { return upstream_->num_shards(); }
  /// A stage that gives other ids than its upstream overrides it.
  std::string name_of(int64_t id) const override { return upstream_->name_of(id); }
  std::vector<File> files() const override { return upstream_->files(); }
  /// A stage of several streams overrides it.
  uint64_t digest() const override { return stage_digest(upstream_->digest(), describe()); }
  int64_t read_ahead() const override { return upstream_->read_ahead(); }
  /// A stage that keeps elements adds them.
  int64_t elements_in_memory() const override { return upstream_->elements_in_memory(); }
  /// A stage that ends a stream, or begins it again, overrides it.
  bool is_endless() const override { return data::is_endless(*upstream_); }

 protected:
  const lockstep::data::StreamSource& upstream() const { return *upstream_; }
  const std::shared_ptr<const lockstep::data::StreamSource>& shared_upstream() const { return upstream_; }
  /// A reader of the upstream, which counts as a stage.
  std::unique_ptr<lockstep::data::StreamReader> open_upstream(const lockstep::data::StreamPass& pass,
                                                              const lockstep::data::StreamPosition& position) const {
    return open_stage(upstream_, pass, position);
  }

 private:
  const std::shared_ptr<const lockstep::data::StreamSource> upstream_;
};

}  // namespace lockstep::internal::data
