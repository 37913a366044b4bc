#include "lockstep/data/deal/stream_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/deal/row_feed.h"

namespace lockstep::internal::inline data {

using lockstep::data::StreamPosition;

int64_t num_readers(Reading reading, const ReplicaGroup& group) {
  if (reading == Reading::kByReplica) return group.num_replicas();
  return reading == Reading::kByWorker ? group.num_workers() : 1;
}

StreamPosition joined_positions(Reading reading, const std::vector<StreamPosition>& positions) {
  StreamPosition numbers{static_cast<int64_t>(reading), static_cast<int64_t>(positions.size())};
  for (const StreamPosition& position : positions) append(numbers, position);
  return numbers;
}

std::vector<StreamPosition> positions_in(const StreamPosition& numbers, Reading reading, int64_t readers,
                                         const std::string& who) {
  if (numbers.empty()) return std::vector<StreamPosition>(static_cast<std::size_t>(readers));
  PositionParts parts(numbers, who);
  const int64_t of = parts.number();
  const int64_t count = parts.number();
  if (of != static_cast<int64_t>(reading) || count != readers) {
    throw UsageError(
        "LS-STATE-MISFIT",
        fmt::format("the cursor is of {} of a stream, and this run has {}{}", counted(count, "reader"), readers,
                    of == static_cast<int64_t>(reading) ? "" : ", by another sharding"),
        "continue with the .sharding that the cursor came from, and where replicas read files of their own "
        "with as many replicas");
  }
  std::vector<StreamPosition> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(parts.inner());
  parts.end();
  return positions;
}

namespace {

class Reader final : public EpochReader {
 public:
  Reader(const lockstep::data::Stream& stream, const DistributeOptions& options, Reading reading,
         const ReplicaGroup& group, const lockstep::data::Cursor& at, bool watched, PartMaker maker)
      : options_(options),
        maker_(std::move(maker)),
        reading_(reading),
        block_(group.block()),
        at_(at),
        watched_(watched),
        compared_(group.num_workers() > 1) {
    const auto positions = positions_in(at.stream, reading, num_readers(reading, group), stream.source()->describe());
    lockstep::data::StreamPass pass{.pass = {.seed = at.seed, .epoch = at.epoch}, .shuffle = options.shuffle};
    if (options.on_error == OnError::kSkip)
      pass.skipped = skipped_ = std::make_shared<lockstep::data::SkippedSamples>();
    if (reading == Reading::kByReplica) {
      pass.shard_count = block_.all;
      for (int64_t r = 0; r < block_.local; ++r) {
        pass.shard_index = block_.id_of(r).value();
        feeds_.emplace_back(stream, pass, positions[static_cast<std::size_t>(pass.shard_index)]);
      }
    } else {
      const int64_t own = reading == Reading::kByWorker ? group.rounds().worker_index() : 0;
      feeds_.emplace_back(stream, pass, positions[static_cast<std::size_t>(own)]);
    }
  }

  Work claim() override {
    return [this] { return read(); };
  }

 private:
  LocalStep read() {
    LocalStep step;
    step.behind = at_;
    if (reading_ == Reading::kWhole && options_.collate) {
      read_whole_to_collate(step);
    } else if (reading_ == Reading::kWhole) {
      read_whole(step);
    } else {
      for (int64_t r = 0; r < block_.local; ++r) {
        RowFeed& feed = feeds_[reading_ == Reading::kByReplica ? static_cast<std::size_t>(r) : 0];
        const ReplicaId replica = block_.id_of(r);
        if (options_.collate) {
          add_collated(step, each_row_for(feed, replica), replica);
        } else {
          add(step, rows_for(feed, replica));
        }
      }
      step.end = step.samples == 0;
    }
    for (const RowFeed& feed : feeds_) step.positions.push_back(feed.position());
    step.skipped = skipped_ ? skipped_->count() : 0;
    if (!step.like) step.like = like_;
    if (pads() || options_.collate) find_filler(step);
    if (watches() && !options_.collate) {
      for (const Batch& part : step.parts) {
        step.part_digests.push_back({part.size() > 0 ? digest_of(part) : 0, part.size()});
      }
    }
    first_ = false;
    return step;
  }

  bool watches() const { return watched_ && first_; }
  bool pads() const { return options_.remainder == Remainder::kPad && options_.global_batch > 0; }

  /// The first row of this process's parts, where that is not known yet.
  void find_filler(LocalStep& step) const {
    const auto has_rows = [](const Batch& part) { return part.size() > 0; };
    if (!step.filler && !options_.collate) {
      const auto first = std::find_if(step.parts.begin(), step.parts.end(), has_rows);
      if (first != step.parts.end()) step.filler = rows_of(*first, 0, 1);
    }
    step.lacks_filler = reading_ != Reading::kWhole && !std::all_of(step.parts.begin(), step.parts.end(), has_rows);
  }

  /// With Remainder::kDrop a part that is not full is left out.
  std::optional<Batch> rows_for(RowFeed& feed, ReplicaId replica) const {
    if (options_.global_batch == 0) return feed.take_element();
    std::optional<Batch> rows = feed.take(size_for(replica));
    if (is_dropped(feed, size_for(replica))) rows.reset();
    return rows;
  }
  std::vector<Batch> each_row_for(RowFeed& feed, ReplicaId replica) const {
    if (options_.global_batch == 0) return feed.take_each_of_element();
    std::vector<Batch> rows = feed.take_each(size_for(replica));
    if (is_dropped(feed, size_for(replica))) rows.clear();
    return rows;
  }
  int64_t size_for(ReplicaId replica) const {
    return part_of({0, options_.global_batch}, replica.value(), block_.all).size();
  }
  bool is_dropped(const RowFeed& feed, int64_t size) const {
    return options_.remainder == Remainder::kDrop && feed.taken() < size;
  }

  void add(LocalStep& step, std::optional<Batch> rows) {
    if (rows && rows->size() > 0 && !step.like) step.like = like_ = no_rows(*rows);
    if (rows) step.samples += rows->size();
    step.parts.push_back(rows ? std::move(*rows) : Batch());
  }

  /// The part that the program's function makes of some rows. That of no rows is made later: StreamDeal::merge().
  void add_collated(LocalStep& step, std::vector<Batch> rows, ReplicaId replica) const {
    if (watches()) {
      uint64_t digest = 0;
      for (const Batch& row : rows) digest = mixed(digest, digest_of(row));
      step.part_digests.push_back({digest, static_cast<int64_t>(rows.size())});
    }
    if (rows.empty()) {
      step.parts.emplace_back();
      return;
    }
    if (!step.filler) step.filler = copied(rows.front());
    std::vector<SampleToCollate> samples;
    for (Batch& row : rows) samples.push_back(batch_to_collate(std::move(row)));
    step.parts.push_back(maker_.part(std::move(samples), replica));
    step.samples += step.parts.back().size();
  }

  /// Invariant: all workers read the same rows, so each knows the whole.
  void read_whole_to_collate(LocalStep& step) {
    std::vector<Batch> rows = feeds_.front().take_each(options_.global_batch);
    if (is_dropped(feeds_.front(), options_.global_batch)) rows.clear();
    step.end = rows.empty();
    step.global_size = static_cast<int64_t>(rows.size());
    if (step.end) return;
    if (compared_) {
      for (const Batch& row : rows) step.digest = mixed(step.digest, mixed(digest_of(row.ids), digest_of(row))) | 1;
    }
    step.filler = copied(rows.front());
    for (int64_t r = 0; r < block_.local; ++r) {
      const Span part = part_of({0, step.global_size}, block_.id_of(r).value(), block_.all);
      const auto begin = std::make_move_iterator(rows.begin());
      add_collated(step, {begin + part.begin, begin + part.end}, block_.id_of(r));
    }
  }

  /// The same without such a function.
  void read_whole(LocalStep& step) {
    const std::optional<Batch> rows = feeds_.front().take(options_.global_batch);
    const int64_t count = rows && !is_dropped(feeds_.front(), options_.global_batch) ? rows->size() : 0;
    step.end = count == 0;
    step.global_size = count;
    if (step.end) return;
    step.like = like_ = no_rows(*rows);
    if (pads()) step.filler = rows_of_copied(*rows, {0, 1});
    if (compared_) step.digest = mixed(digest_of(rows->ids), digest_of(*rows)) | 1;
    // Padding counts as rows where parts are cut, as in a data set.
    const int64_t size = options_.remainder == Remainder::kPad ? options_.global_batch : count;
    for (int64_t r = 0; r < block_.local; ++r) {
      const Span part = part_of({0, size}, block_.id_of(r).value(), block_.all);
      const Span there{std::min(part.begin, count), std::min(part.end, count)};
      add(step, rows_of_copied(*rows, there));
    }
  }

  /// Copies, so that no part keeps the whole.
  static Batch rows_of_copied(const Batch& rows, const Span& span) {
    return copied(rows_of(rows, span.begin, span.size()));
  }

  const DistributeOptions options_;
  const PartMaker maker_;
  const Reading reading_;
  const ReplicaBlock block_;
  const lockstep::data::Cursor at_;
  const bool watched_;
  const bool compared_;  // workers compare what they have read
  std::shared_ptr<lockstep::data::SkippedSamples> skipped_;
  std::vector<RowFeed> feeds_;
  std::optional<Batch> like_;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<EpochReader> stream_steps(const lockstep::data::Stream& stream, const DistributeOptions& options,
                                          Reading reading, const ReplicaGroup& group, const lockstep::data::Cursor& at,
                                          bool watched, PartMaker maker) {
  return std::make_unique<Reader>(stream, options, reading, group, at, watched, std::move(maker));
}

}  // namespace lockstep::internal::data
