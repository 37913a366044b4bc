// A stream's samples, dealt to the replicas in order: from one reader for all, or from one for each replica or worker.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/deal/stream_steps.h"
#include "lockstep/data/stages/stream_stage.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline data {

namespace {

using lockstep::data::StreamPosition;

/// Samples that `shuffle` keeps in memory.
constexpr int64_t kWindow = 1024;

class StreamDeal final : public Deal {
 public:
  StreamDeal(lockstep::data::Stream stream, DistributeOptions options, std::shared_ptr<ReplicaGroup> group,
             Reading reading, bool own)
      : Deal(std::move(options), std::move(group)), stream_(std::move(stream)), reading_(reading), own_(own) {}

  int64_t size() const override { refuse("size()"); }
  int64_t steps_per_epoch() const override { refuse("steps_per_epoch()"); }
  std::string describe() const override { return stream_.source()->describe(); }
  int64_t read_ahead() const override { return stream_.source()->read_ahead(); }
  int64_t elements_in_memory() const override {
    return stream_.source()->elements_in_memory() *
           (reading_ == Reading::kByReplica ? group().num_local_replicas() : 1);
  }
  bool is_parallel() const override { return false; }

  lockstep::data::Cursor begin_of(int64_t epoch) const override {
    const Files& files = this->files();
    return {.epoch = epoch,
            .size = static_cast<int64_t>(files.all.size()),
            .seed = seed(),
            .shuffle = options().shuffle,
            .digest = files.digest,
            .digest_by_file = files.digest_by_file};
  }

  void check(const lockstep::data::Cursor& cursor) const override {
    const Files& files = this->files();
    if (cursor.size != static_cast<int64_t>(files.all.size())) {
      throw DataError("LS-DATA-CHANGED",
                      fmt::format("the cursor is of {}, and the stream has {}{}", counted(cursor.size, "file"),
                                  files.all.size(), added(files, cursor)),
                      "give the files that the cursor came from");
    }
    const bool is_known = cursor.digest != 0 && files.digest != 0;
    if (is_known && (cursor.digest != files.digest || cursor.digest_by_file != files.digest_by_file)) {
      throw DataError("LS-DATA-CHANGED", fmt::format("since the cursor was saved, {}", changed(files, cursor)),
                      "give the files that the cursor came from, or begin at the first epoch");
    }
    if (cursor.position > 0 && cursor.stream.empty()) {
      throw UsageError(
          "LS-STATE-MISFIT",
          fmt::format("a cursor at position {} of a stream does not say where its stages are", cursor.position),
          "give all that cursor() gave, Cursor::stream too");
    }
    if (cursor.epoch < 0 || cursor.position < 0) {
      throw UsageError("LS-STATE-MISFIT",
                       fmt::format("there is no epoch {}, position {} in a stream", cursor.epoch, cursor.position),
                       "give what cursor() gave");
    }
    positions_in(cursor.stream, reading_, num_readers(reading_, group()), describe());
  }

  bool is_endless() const override { return data::is_endless(*stream_.source()); }
  std::unique_ptr<EpochReader> open(const lockstep::data::Cursor& at, const DistributeOptions& options) const override {
    return stream_steps(stream_, options, reading_, group(), at, is_watched(), part_maker(at));
  }

 protected:
  bool agrees() const override { return group().num_workers() > 1; }
  bool is_one_order() const override { return reading_ != Reading::kByWorker; }
  bool is_watched() const override { return watches_order() || reading_ == Reading::kByReplica; }
  bool watches_order() const override { return own_ && options().sharding != Sharding::kOff; }

  void merge(LocalStep& mine, const std::vector<LocalStep>& all, const lockstep::data::Cursor& before) const override {
    if (reading_ == Reading::kWhole) {
      for (std::size_t w = 1; w < all.size(); ++w) require_equal(all[0], all[w], static_cast<int64_t>(w), before);
      if (mine.end) return;
    }
    if (mine.parts.empty()) mine.parts.resize(static_cast<std::size_t>(group().num_local_replicas()));
    mine.end = false;  // others may have samples
    for (const LocalStep& one : all) {
      if (one.filler) mine.filler = one.filler;
    }
    if (options().remainder == Remainder::kPad && options().global_batch > 0) pad(mine);
    if (options().collate) collate_nothing(mine, before);
    std::vector<StreamPosition> positions;
    if (reading_ == Reading::kWhole) {
      positions = mine.positions;
    } else {
      for (const LocalStep& one : all) positions.insert(positions.end(), one.positions.begin(), one.positions.end());
    }
    mine.behind = before;
    mine.behind.position += mine.global_size;
    mine.behind.stream = joined_positions(reading_, positions);
  }

 private:
  struct Files {
    std::vector<lockstep::data::StreamSource::File> all;
    uint64_t digest = 0;
    uint64_t digest_by_file = 0;
  };

  [[noreturn]] static void refuse(const char* call) {
    throw UsageError("LS-STREAM", fmt::format("{} was asked of a stream, whose length is not known", call),
                     "read epoch(n) to its end, or distribute a Dataset");
  }

  const Files& files() const {
    std::call_once(listed_, [&] {
      files_.all = stream_.source()->files();
      for (std::size_t i = 0; i < files_.all.size(); ++i) {
        files_.digest += files_.all[i].digest;
        files_.digest_by_file += files_.all[i].digest * (i + 1);
      }
      // Workers that chose data of their own have one cursor: it cannot tell one worker's data from another's.
      if (watches_order() && group().num_workers() > 1) files_.digest = files_.digest_by_file = 0;
    });
    return files_;
  }

  /// Where one file was added, the sum without it is the sum of before.
  static std::string added(const Files& files, const lockstep::data::Cursor& cursor) {
    if (cursor.digest == 0 || static_cast<int64_t>(files.all.size()) != cursor.size + 1) return {};
    for (const lockstep::data::StreamSource::File& one : files.all) {
      if (files.digest - one.digest == cursor.digest) return fmt::format(": '{}' was added", one.name);
    }
    return {};
  }

  /// Where one file has changed, its place is the quotient of the two sums' changes.
  static std::string changed(const Files& files, const lockstep::data::Cursor& cursor) {
    const uint64_t change = files.digest - cursor.digest;
    if (change == 0) {
      return fmt::format("the files '{}' to '{}' have come into another order", files.all.front().name,
                         files.all.back().name);
    }
    const uint64_t by_file = files.digest_by_file - cursor.digest_by_file;
    for (std::size_t i = 0; i < files.all.size(); ++i) {
      if (change * (i + 1) == by_file) return fmt::format("'{}' has changed", files.all[i].name);
    }
    return fmt::format("several of the files '{}' to '{}' have changed", files.all.front().name, files.all.back().name);
  }

  static void require_equal(const LocalStep& first, const LocalStep& other, int64_t worker,
                            const lockstep::data::Cursor& before) {
    if (first.digest == other.digest && first.end == other.end) return;
    throw DivergenceError("LS-STREAM-DIFFERS",
                          fmt::format("worker {} read other samples than worker 0 behind position {} of epoch {}",
                                      worker, before.position, before.epoch),
                          "give all workers the same files; a generator, a parse function and a filter must give the "
                          "same on all");
  }

  /// With copies of the part's own first row, or, where it has none, of the first one of all replicas. Both follow from
  /// the order of the samples alone.
  void pad(LocalStep& step) const {
    int64_t replica = group().first_replica().value();
    for (Batch& part : step.parts) {
      const int64_t size = part_of({0, options().global_batch}, replica++, group().num_replicas()).size();
      if (part.size() < size) pad_rows(part, size - part.size(), part.size() > 0 ? part : step.filler.value());
    }
  }

  /// Makes the parts without rows, of the first row of all replicas.
  void collate_nothing(LocalStep& step, const lockstep::data::Cursor& before) const {
    std::optional<Batch> none;
    ReplicaId replica = group().first_replica();
    for (Batch& part : step.parts) {
      if (!part.input.defined() && step.filler) {
        if (!none) {
          none = part_maker(before).without_samples([&] { return batch_to_collate(copied(*step.filler)); }, replica);
        }
        part = copied(*none);
      }
      replica = replica + 1;
    }
  }

  const lockstep::data::Stream stream_;
  const Reading reading_;
  const bool own_;
  mutable std::once_flag listed_;
  mutable Files files_;
};

/// Whether each replica reads files of its own. It depends on the stream and on the number of replicas alone, so that
/// lanes and workers decide nothing.
Reading reading_of(const lockstep::data::Stream& stream, const DistributeOptions& options, const ReplicaGroup& group) {
  if (options.sharding == Sharding::kData) return Reading::kWhole;
  if (options.sharding == Sharding::kOff) return group.num_workers() > 1 ? Reading::kByWorker : Reading::kWhole;
  const int64_t replicas = group.num_replicas();
  const int64_t shards = stream.source()->num_shards();
  // A replica without a sample in a whole global batch would never read its files.
  const bool has_samples = options.global_batch >= replicas;
  if (shards >= replicas && has_samples && replicas > 1) return Reading::kByReplica;
  if (options.sharding == Sharding::kFile && !has_samples) {
    log(LogLevel::kWarning,
        fmt::format("a global batch of {} has no sample for some of {} replicas: every worker reads all of {} "
                    "(Sharding::kData)",
                    options.global_batch, replicas, stream.source()->describe()));
  } else if (shards < replicas && (options.sharding == Sharding::kFile || shards > 1)) {
    log(options.sharding == Sharding::kFile ? LogLevel::kWarning : LogLevel::kInfo,
        fmt::format("{} can be read in {} and not in {}, one for each replica: every worker reads all of it "
                    "(Sharding::kData)",
                    stream.source()->describe(), counted(shards, "part"), replicas));
  }
  return Reading::kWhole;
}

}  // namespace

std::shared_ptr<const Deal> deal_of(const lockstep::data::Stream& stream, DistributeOptions options,
                                    std::shared_ptr<ReplicaGroup> group, bool own) {
  stream.source();  // throws for an empty handle
  check_collate(options, nullptr);
  if (options.global_batch < (own ? 0 : 1)) {
    throw UsageError("LS-OPTION", fmt::format("distribute was given .global_batch = {}", options.global_batch),
                     "give the number of samples of a step over all replicas, at least 1");
  }
  if (own && options.global_batch > 0 && options.global_batch < group->num_replicas()) {
    throw UsageError(
        "LS-OPTION",
        fmt::format("a worker was to deal data of its own by a global batch of {}, which has no sample for "
                    "some of {} replicas",
                    options.global_batch, group->num_replicas()),
        "give at least one sample for each replica");
  }
  const Reading reading = own ? Reading::kByWorker : reading_of(stream, options, *group);
  const lockstep::data::Stream dealt =
      options.shuffle ? stream.shuffle(kWindow, options.seed.value_or(group->seed())) : stream;
  return std::make_shared<StreamDeal>(dealt, std::move(options), std::move(group), reading, own);
}

}  // namespace lockstep::internal::data
