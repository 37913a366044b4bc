// What stages of a data set have in common. A stage is a source that makes its samples from those of another source.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Base of stages. A stage of your own implements read(), describe() and with(). Where each of its samples is made of
/// one sample of what is before it, it hands ids_at(), id_bound() and name_of() on, so that samples keep their ids;
/// otherwise ids are places.
class Stage : public Source {
 public:
  /// Throws a UsageError for an empty data set.
  explicit Stage(const Dataset& upstream) : upstream_(upstream.source()) {}

  int64_t size() const override;
  std::shared_ptr<const Source> at_epoch(const Pass& pass) const override;
  uint64_t digest() const override;
  std::vector<SourceFile> files() const override;
  int64_t read_ahead() const override;
  void require_batches() const override { upstream_->require_batches(); }

 protected:
  /// The same stage behind another source, which has the same samples in another pass.
  virtual std::shared_ptr<const Source> with(const Dataset& upstream) const = 0;

  const Source& upstream() const { return *upstream_; }
  /// The upstream source as a data set.
  Dataset whole() const { return Dataset(upstream_); }
  /// Samples of the upstream source, checked. Their `ids` are undefined.
  Batch read_upstream(std::span<const int64_t> ids) const;

 private:
  const std::shared_ptr<const Source> upstream_;
};

}  // namespace lockstep::data

namespace lockstep::internal::inline data {

/// Reads from a source and checks that the result is what was asked for: see lockstep::data::Dataset::read.
Batch read_checked(const lockstep::data::Source& source, std::span<const int64_t> ids);

/// A stage whose samples are samples of its upstream source: it maps their numbers.
class IndexStage : public lockstep::data::Stage {
 public:
  using Stage::Stage;
  Batch read(std::span<const int64_t> ids) const override;
  std::optional<std::vector<AnySample>> read_as(const std::type_info& type,
                                                std::span<const int64_t> places) const override;
  std::string name_of(int64_t id) const override { return upstream().name_of(id); }
  std::vector<int64_t> ids_at(std::span<const int64_t> places) const override;
  int64_t id_bound() const override { return upstream().id_bound(); }

 protected:
  /// Where the sample at a place is in the upstream source.
  virtual int64_t upstream_id(int64_t id) const = 0;

 private:
  std::vector<int64_t> upstream_ids(std::span<const int64_t> ids) const;
};

/// A stage whose sample at a place is made of the one at the same place of its upstream source.
class EachStage : public lockstep::data::Stage {
 public:
  using Stage::Stage;
  std::string name_of(int64_t id) const override { return upstream().name_of(id); }
  std::vector<int64_t> ids_at(std::span<const int64_t> places) const override { return upstream().ids_at(places); }
  int64_t id_bound() const override { return upstream().id_bound(); }
};

/// Throws the UsageError of a count below `least`.
void check_count(const char* call, int64_t count, int64_t least);
/// Throws the UsageError of a shard that there cannot be.
void check_shard(const char* call, int64_t count, int64_t index);

}  // namespace lockstep::internal::data
