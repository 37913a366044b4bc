// The stages of streams that call functions of the program.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/data/stages/map_call.h"
#include "lockstep/data/stages/sample_error.h"
#include "lockstep/data/stages/stream_stage.h"

namespace lockstep::data {

using internal::append;
using internal::PositionParts;
using internal::StreamStage;

namespace {

using Reader = std::unique_ptr<StreamReader>;
using Named = std::shared_ptr<const StreamSource>;

struct Mapping {
  Mapping(internal::MapCall fn, int64_t threads) : call(std::move(fn)), pool(threads) {}
  /// How many elements are read and mapped together.
  int64_t at_once() const { return pool.threads() == 1 ? 1 : 4 * pool.threads(); }

  const internal::MapCall call;
  internal::ReadPool pool;
};

/// The number of an element, for its random work and for messages.
int64_t first_id(const Batch& element) {
  if (!element.ids.defined() || element.ids.numel() == 0) return 0;
  return element.ids[0].item<int64_t>();
}

/// Reads a group of elements, maps them side by side, and gives them one by one.
class MapReader final : public StreamReader {
 public:
  MapReader(Reader upstream, std::shared_ptr<Mapping> mapping, const Pass& pass, Named source,
            std::shared_ptr<SkippedSamples> skipped)
      : upstream_(std::move(upstream)),
        mapping_(std::move(mapping)),
        pass_(pass),
        source_(std::move(source)),
        skipped_(std::move(skipped)),
        position_(upstream_->position()) {}

  bool next(Batch& element) override {
    while (true) {
      if (made_.empty()) read_group();
      if (made_.empty()) return false;
      Made made = std::move(made_.front());
      made_.pop_front();
      position_ = std::move(made.behind);
      if (made.error) {
        if (!skipped_ || made.from_upstream) std::rethrow_exception(made.error);
        skipped_->add(made.error);
        continue;
      }
      element = std::move(made.element);
      return true;
    }
  }
  StreamPosition position() const override { return position_; }

 private:
  struct Made {
    Batch element;
    StreamPosition behind;
    std::exception_ptr error = nullptr;
    bool from_upstream = false;
  };

  void read_group() {
    const auto wanted = static_cast<std::size_t>(mapping_->at_once());
    while (made_.size() < wanted) {
      Made made;
      try {
        if (!upstream_->next(made.element)) break;
      } catch (...) {
        made.error = std::current_exception();
        made.from_upstream = true;
      }
      made.behind = upstream_->position();
      made_.push_back(std::move(made));
      if (made_.back().error) break;
    }
    mapping_->pool.run(static_cast<int64_t>(made_.size()), [&](int64_t i) {
      Made& made = made_[static_cast<std::size_t>(i)];
      if (made.error) return;
      const at::Tensor ids = made.element.ids;
      const int64_t id = first_id(made.element);
      try {
        internal::SampleRandom random(pass_);
        made.element = internal::call_map(mapping_->call, random, std::move(made.element), id,
                                          [&] { return source_->name_of(id); });
        made.element.ids = ids;
      } catch (...) {
        made.error = std::current_exception();
      }
    });
  }

  const Reader upstream_;
  const std::shared_ptr<Mapping> mapping_;
  const Pass pass_;
  const Named source_;  // names its samples
  const std::shared_ptr<SkippedSamples> skipped_;
  StreamPosition position_;
  std::deque<Made> made_;
};

class MapStage final : public StreamStage {
 public:
  MapStage(const Stream& upstream, std::shared_ptr<Mapping> mapping)
      : StreamStage(upstream), mapping_(std::move(mapping)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    StreamPass before = pass;
    ++before.pass.maps_after;
    return std::make_unique<MapReader>(open_upstream(before, position), mapping_, pass.pass, shared_upstream(),
                                       pass.skipped);
  }
  std::string describe() const override { return fmt::format("{} of {}", mapping_->call.name, upstream().describe()); }
  int64_t elements_in_memory() const override { return upstream().elements_in_memory() + mapping_->at_once() - 1; }

 private:
  const std::shared_ptr<Mapping> mapping_;
};

class FilterReader final : public StreamReader {
 public:
  FilterReader(Reader upstream, std::function<bool(const Batch&)> keep, Named source,
               std::shared_ptr<SkippedSamples> skipped)
      : upstream_(std::move(upstream)),
        keep_(std::move(keep)),
        source_(std::move(source)),
        skipped_(std::move(skipped)) {}
  bool next(Batch& element) override {
    while (upstream_->next(element)) {
      try {
        const internal::ReadingScope scope;
        if (keep_(element)) return true;
        continue;
      } catch (...) {
        if (!skipped_ || !internal::is_about_sample(std::current_exception())) rethrow(first_id(element));
        skipped_->add(std::current_exception());
      }
    }
    return false;
  }
  StreamPosition position() const override { return upstream_->position(); }

 private:
  [[noreturn]] void rethrow(int64_t id) const {
    std::throw_with_nested(
        DataError("LS-MAP",
                  fmt::format("the function of filter failed on {}: {}", source_->name_of(id),
                              message_of(std::current_exception())),
                  "correct the function or the sample, or skip such samples: DistributeOptions::on_error; "
                  "std::rethrow_if_nested gives the exception itself"));
  }

  const Reader upstream_;
  const std::function<bool(const Batch&)> keep_;
  const Named source_;  // names its samples
  const std::shared_ptr<SkippedSamples> skipped_;
};

class FilterStage final : public StreamStage {
 public:
  FilterStage(const Stream& upstream, std::function<bool(const Batch&)> keep)
      : StreamStage(upstream), keep_(std::move(keep)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    return std::make_unique<FilterReader>(open_upstream(pass, position), keep_, shared_upstream(), pass.skipped);
  }
  std::string describe() const override { return fmt::format("some elements of {}", upstream().describe()); }

 private:
  const std::function<bool(const Batch&)> keep_;
};

}  // namespace

Stream Stream::mapped(MapFunction fn, bool takes_generator, const MapOptions& options) const {
  const int64_t threads = internal::mapping_threads(options.threads);
  return Stream(std::make_shared<MapStage>(
      *this, std::make_shared<Mapping>(internal::MapCall{std::move(fn), takes_generator, options.name}, threads)));
}

Stream Stream::filter(std::function<bool(const Batch&)> keep) const {
  return Stream(std::make_shared<FilterStage>(*this, std::move(keep)));
}

}  // namespace lockstep::data
