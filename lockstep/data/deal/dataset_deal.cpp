// A data set's samples, dealt to the replicas by the plan.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/collated_part.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/stages/sample_error.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline data {

namespace {

/// Reads the steps of one epoch, each by itself.
class Reader final : public EpochReader {
 public:
  Reader(const Dataset& dataset, const DistributeOptions& options, const ReplicaBlock& block,
         const lockstep::data::Cursor& at, PartMaker maker)
      : dataset_(dataset.at_epoch(at.seed, at.epoch)),
        options_(options),
        maker_(std::move(maker)),
        block_(block),
        at_(at),
        order_(at.size, at.shuffle, at.seed, at.epoch),
        steps_(steps_of_epoch(at.size - std::min(at.position, at.size), options.global_batch,
                              options.remainder == Remainder::kDrop)),
        skipped_(std::make_shared<lockstep::data::SkippedSamples>()) {}

  Work claim() override {
    if (step_ >= steps_) return nullptr;
    return [this, step = step_++] { return read(step); };
  }

 private:
  LocalStep read(int64_t step) const {
    const int64_t first = std::min(at_.position, at_.size);
    Span whole = batch_span(at_.size - first, options_.global_batch, step);
    whole.begin += first;
    whole.end += first;
    LocalStep result;
    result.behind = at_;
    result.behind.position = whole.end;
    const bool pads = options_.remainder == Remainder::kPad;
    const Span rows{whole.begin, pads ? whole.begin + options_.global_batch : whole.end};
    for (int64_t r = 0; r < block_.local; ++r) {
      const Span part = part_of(rows, block_.id_of(r).value(), block_.all);
      const Span samples{std::min(part.begin, whole.end), std::min(part.end, whole.end)};
      result.parts.push_back(options_.collate ? collated(samples, block_.id_of(r)) : read(samples));
      pad(result.parts.back(), part.size() - samples.size());
      result.samples += result.parts.back().samples();
      const bool is_like = skips() && !options_.collate && !result.like && result.parts.back().size() > 0;
      if (is_like) result.like = no_rows(result.parts.back());
    }
    result.skipped = skipped_->count();
    if (!skips()) result.global_size = whole.size();
    return result;
  }

  bool skips() const { return options_.on_error == OnError::kSkip; }

  Batch read(const Span& span) const {
    std::vector<int64_t> ids;
    for (int64_t position = span.begin; position < span.end; ++position) ids.push_back(order_.sample_at(position));
    if (!skips()) return dataset_.read(ids);
    if (ids.empty()) return without_rows();
    try {
      return dataset_.read(ids);
    } catch (const DataError&) {
      return read_what_can_be_read(ids);
    }
  }

  /// What the program's function makes of the samples.
  Batch collated(const Span& span, ReplicaId replica) const {
    std::vector<int64_t> places;
    for (int64_t position = span.begin; position < span.end; ++position) places.push_back(order_.sample_at(position));
    std::vector<SampleToCollate> samples = samples_at(places);
    return samples.empty() ? without_samples(replica) : maker_.part(std::move(samples), replica);
  }

  std::vector<SampleToCollate> samples_at(const std::vector<int64_t>& places) const {
    if (!skips()) return samples_to_collate(options_.collate, dataset_, places);
    std::vector<SampleToCollate> samples;
    for (const int64_t& place : places) {
      try {
        samples.push_back(std::move(samples_to_collate(options_.collate, dataset_, {&place, 1}).front()));
      } catch (const DataError&) {
        skipped_->add(std::current_exception());
      }
    }
    return samples;
  }

  /// Made of the epoch's first sample that can be read, so that it depends on the data alone.
  Batch without_samples(ReplicaId replica) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!none_) {
      const auto place = first_place_to_collate();
      if (!place) return {};
      none_ = maker_.without_samples(
          [&] {
            return std::move(samples_to_collate(options_.collate, dataset_, {&*place, 1}).front());
          },
          replica);
    }
    return copied(*none_);
  }

  std::optional<int64_t> first_place_to_collate() const {
    for (int64_t tried = 0; tried < std::min(at_.size, kTried); ++tried) {
      const int64_t place = order_.sample_at(tried);
      try {
        samples_to_collate(options_.collate, dataset_, {&place, 1});
        return place;
      } catch (const DataError&) {
        if (!skips() || !is_about_sample(std::current_exception())) throw;
      }
    }
    return std::nullopt;
  }

  Batch read_what_can_be_read(const std::vector<int64_t>& ids) const {
    std::vector<Batch> read;
    for (const int64_t& id : ids) {
      try {
        read.push_back(dataset_.read({&id, 1}));
      } catch (const DataError&) {
        skipped_->add(std::current_exception());
      }
    }
    if (read.empty()) return without_rows();
    const lockstep::data::Source& source = *dataset_.source();
    return joined_most(
        std::move(read), source.describe(), [&](int64_t id) { return source.name_of(id); },
        [&](const std::exception_ptr& error) { skipped_->add(error); });
  }

  /// A part without rows; undefined where no shape can be found. Deal::next gives it that of another part then.
  Batch without_rows() const {
    try {
      return dataset_.read({});
    } catch (const DataError&) {
      const Batch& row = first_that_can_be_read();
      return row.input.defined() ? no_rows(row) : Batch();
    }
  }

  /// One of the epoch's first samples; undefined where none of them can be read. It depends on the data alone, so that
  /// workers, and a run that continues, pad with the same row.
  const Batch& first_that_can_be_read() const {
    for (; !row_.input.defined() && tried_ < std::min(at_.size, kTried); ++tried_) {
      const int64_t id = order_.sample_at(tried_);
      try {
        row_ = dataset_.read({&id, 1});
      } catch (const DataError&) {
        if (!is_about_sample(std::current_exception())) throw;  // otherwise it is counted where its turn comes
      }
    }
    return row_;
  }

  /// Fills a part up with copies of a sample.
  void pad(Batch& part, int64_t count) const {
    if (count == 0) return;
    if (part.size() > 0) return pad_rows(part, count, part);
    if (skips()) {
      const Batch& row = first_that_can_be_read();
      if (row.input.defined()) pad_rows(part, count, row);
      return;
    }
    const int64_t first = order_.sample_at(0);
    pad_rows(part, count, dataset_.read({&first, 1}));
  }

  static constexpr int64_t kTried = 1024;  // samples that may not be read until one can be

  const Dataset dataset_;
  const DistributeOptions options_;
  const PartMaker maker_;
  const ReplicaBlock block_;
  const lockstep::data::Cursor at_;
  const EpochOrder order_;
  const int64_t steps_;
  const std::shared_ptr<lockstep::data::SkippedSamples> skipped_;
  int64_t step_ = 0;
  // With OnError::kSkip, where one thread reads.
  mutable Batch row_;
  mutable int64_t tried_ = 0;
  mutable std::mutex mutex_;
  mutable std::optional<Batch> none_;  // a part without samples, where there is a collate function; guarded by mutex_
};

class DatasetDeal final : public Deal {
 public:
  DatasetDeal(Dataset dataset, DistributeOptions options, std::shared_ptr<ReplicaGroup> group)
      : Deal(std::move(options), std::move(group)),
        dataset_(std::move(dataset)),
        digest_(dataset_.source()->digest()),
        by_file_(dataset_.source()->files()) {}

  int64_t size() const override { return dataset_.size(); }
  int64_t steps_per_epoch() const override {
    return steps_of_epoch(size(), options().global_batch, options().remainder == Remainder::kDrop);
  }
  std::string describe() const override { return dataset_.source()->describe(); }
  int64_t read_ahead() const override { return dataset_.source()->read_ahead(); }
  /// The count of samples that were left out grows in order.
  bool is_parallel() const override { return options().on_error != OnError::kSkip; }

  lockstep::data::Cursor begin_of(int64_t epoch) const override {
    return {.epoch = epoch,
            .size = size(),
            .seed = seed(),
            .shuffle = options().shuffle,
            .digest = digest_,
            .digest_by_file = by_file_.both};
  }

  void check(const lockstep::data::Cursor& cursor) const override {
    const int64_t size = this->size();
    const bool knows_files = by_file_.both != 0 && cursor.digest_by_file != 0;
    const auto changed_file = [&]() -> std::string {
      if (!knows_files || cursor.digest_by_file == by_file_.both) return {};
      return fmt::format("since the cursor was saved, {}",
                         by_file_.changed_since(cursor.digest_by_file, dataset_.source()->files()));
    };
    if (cursor.size != size) {
      const std::string changed = changed_file();
      throw DataError("LS-DATA-CHANGED",
                      fmt::format("the cursor is of {}, and here the size is {}: {}{}", counted(cursor.size, "sample"),
                                  size, describe(), changed.empty() ? "" : "; " + changed),
                      "give the data set that the cursor came from");
    }
    if (cursor.digest != 0 && digest_ != 0 && cursor.digest != digest_) {
      const std::string changed = changed_file();
      throw DataError("LS-DATA-CHANGED",
                      changed.empty() ? fmt::format("the cursor is of other data than {}", describe()) : changed,
                      "give the data set that the cursor came from, or begin at the first epoch");
    }
    if (!cursor.stream.empty() || cursor.epoch < 0 || cursor.position < 0 || cursor.position > size) {
      throw UsageError("LS-STATE-MISFIT",
                       fmt::format("there is no epoch {}, position {} in a data set of {} samples", cursor.epoch,
                                   cursor.position, size),
                       "give what cursor() gave");
    }
  }

  std::unique_ptr<EpochReader> open(const lockstep::data::Cursor& at, const DistributeOptions& options) const override {
    return std::make_unique<Reader>(dataset_, options, group().block(), at, part_maker(at));
  }

 protected:
  bool agrees() const override { return options().on_error == OnError::kSkip && group().num_workers() > 1; }
  void merge(LocalStep& /*mine*/, const std::vector<LocalStep>& /*all*/,
             const lockstep::data::Cursor& /*before*/) const override {}

 private:
  const Dataset dataset_;
  const uint64_t digest_;
  const FilesDigest by_file_;
};

}  // namespace

std::shared_ptr<const Deal> deal_of(const Dataset& dataset, DistributeOptions options,
                                    std::shared_ptr<ReplicaGroup> group) {
  dataset.size();  // throws for an empty handle
  check_collate(options, dataset.source().get());
  if (options.global_batch < 1) {
    throw UsageError("LS-OPTION", fmt::format("distribute was given .global_batch = {}", options.global_batch),
                     "give the number of samples of a step over all replicas, at least 1");
  }
  if (options.sharding == Sharding::kOff && group->num_workers() > 1) {
    const Dataset own = options.shuffle ? dataset.shuffle(options.seed.value_or(group->seed())) : dataset;
    options.shuffle = false;
    return deal_of(lockstep::data::from_dataset(own), std::move(options), std::move(group), true);
  }
  return std::make_shared<DatasetDeal>(dataset, std::move(options), std::move(group));
}

}  // namespace lockstep::internal::data
