// How a data set or stream is dealt to the replicas, and how far it has come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/deal/collated_part.h"
#include "lockstep/data/deal/handed_out.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/data/stages/repeated_input.h"

namespace lockstep::internal::inline data {

/// What is behind a handle. A UsageError where it is empty.
const Deal& deal_behind(const lockstep::data::DistributedDataset& data);

/// This process's part of one step.
struct LocalStep {
  std::vector<Batch> parts = {};       // of the local replicas; undefined where they have no rows: see `like`
  int64_t samples = 0;                 // rows of all parts, without padding
  int64_t global_size = -1;            // samples of all replicas; -1: the workers add them up
  lockstep::data::Cursor behind = {};  // the place behind it; Deal::merge completes that of a stream
  std::vector<lockstep::data::StreamPosition> positions = {};  // of a stream: where the readers of this process are
  int64_t skipped = 0;                                         // samples that were left out since the pass began
  uint64_t digest = 0;                                         // of the rows, where every worker has read all of them
  std::vector<PartDigest> part_digests = {};                   // of the first step of a pass that is watched
  /// No rows, of the dtypes and shapes of the data, once they are known: those of this step where it has rows. Not
  /// where a function of the program makes the parts.
  std::optional<Batch> like = {};
  /// Of a stream, the first row of the step, over all workers, with its id. Parts without rows are padded with it
  /// (Remainder::kPad), or a collate function makes them of it.
  std::optional<Batch> filler = {};
  bool lacks_filler = false;  // a part has no row of its own where one is needed, and workers know different rows
  bool end = false;           // there was nothing to read

  /// What the other workers need of it, and back: a PeerError for bytes of `worker` that summary() does not make.
  std::string summary() const;
  static LocalStep from_summary(std::string_view bytes, int64_t worker);
};

/// Reads one epoch, step by step.
class EpochReader {
 public:
  using Work = std::function<LocalStep()>;
  virtual ~EpochReader() = default;
  /// What reads the next step; nothing at the end. One thread at a time calls it.
  virtual Work claim() = 0;
};

class Deal {
 public:
  Deal(DistributeOptions options, std::shared_ptr<ReplicaGroup> group);
  virtual ~Deal() = default;
  Deal(const Deal&) = delete;
  Deal& operator=(const Deal&) = delete;

  const DistributeOptions& options() const { return options_; }
  uint64_t seed() const { return seed_; }
  ReplicaGroup& group() const { return *group_; }

  virtual int64_t size() const = 0;
  virtual int64_t steps_per_epoch() const = 0;
  virtual std::string describe() const = 0;
  virtual int64_t read_ahead() const = 0;
  /// How many elements this process's readers of a stream keep beside the steps.
  virtual int64_t elements_in_memory() const { return 0; }
  /// The place at the beginning of an epoch.
  virtual lockstep::data::Cursor begin_of(int64_t epoch) const = 0;
  /// Throws unless the cursor is of this data.
  virtual void check(const lockstep::data::Cursor& cursor) const = 0;
  /// Reads on from a place, as `options` say: those of this deal, but for the remainder.
  virtual std::unique_ptr<EpochReader> open(const lockstep::data::Cursor& at,
                                            const DistributeOptions& options) const = 0;
  /// Whether an epoch has no end, as far as that is known.
  virtual bool is_endless() const { return false; }

  /// Who reads. A look hands nothing out, so that the cursor and the ledger stay as they are, and leaves no sample out.
  enum class For : uint8_t { kUse, kLook };
  /// The next step of all workers, from what `feed` has read; nothing at the end. `behind` becomes the place behind it.
  std::optional<PerReplica<Batch>> next(StepFeed& feed, lockstep::data::Cursor& behind, For purpose = For::kUse) const;
  /// The loop goes on to the step after this one.
  void pass(const PerReplica<Batch>& step) const;
  /// All steps that were given are used.
  void use_all() const;
  std::shared_ptr<StepFeed> feed(const lockstep::data::Cursor& at, For purpose = For::kUse) const;
  /// How many steps are read ahead, and on how many threads.
  int64_t depth() const { return options_.prefetch.value_or(read_ahead()); }
  int64_t num_reading_threads() const;

  /// The place at which epoch `epoch` begins, after the last seek; nothing where that has left it behind.
  std::optional<lockstep::data::Cursor> start_of(int64_t epoch) const;
  lockstep::data::Cursor cursor() const;
  void seek(const lockstep::data::Cursor& cursor) const;
  /// All epochs are whole again. The cursor stays where it is until a step is used.
  void forget_seek() const;
  int64_t skipped() const;
  std::vector<lockstep::data::LedgerEntry> ledger() const;

 protected:
  /// Makes the parts of the epoch at a place by the program's function, where there is one.
  PartMaker part_maker(const lockstep::data::Cursor& at) const;
  /// Whether several steps may be read at once.
  virtual bool is_parallel() const = 0;
  /// Whether workers have to agree on each step.
  virtual bool agrees() const = 0;
  /// Puts all workers' parts of a step together, behind the place `before`. Sets `end` where the epoch is over.
  virtual void merge(LocalStep& mine, const std::vector<LocalStep>& all,
                     const lockstep::data::Cursor& before) const = 0;
  /// Whether the workers deal from one order of samples, not each from its own.
  virtual bool is_one_order() const { return true; }
  /// Whether replicas can have read the same.
  virtual bool is_watched() const { return false; }
  /// Whether epochs can repeat each other without the program's knowing.
  virtual bool watches_order() const { return false; }

 private:
  LocalStep read(StepFeed& feed) const;
  /// Batch::origin of the step between two places.
  std::string origin_of(const lockstep::data::Cursor& before, const lockstep::data::Cursor& behind) const;
  std::vector<LocalStep> agreed(StepFeed& feed, LocalStep& mine) const;
  void share_filler(const LocalStep& mine, std::vector<LocalStep>& all) const;
  void watch(const std::vector<LocalStep>& all, int64_t epoch, For purpose) const;
  void note(const PerReplica<Batch>& step, const lockstep::data::Cursor& before,
            const lockstep::data::Cursor& behind) const;
  void count_skipped(int64_t count) const;
  void report(HandedOut::Doubt doubt) const;

  const DistributeOptions options_;
  const std::shared_ptr<ReplicaGroup> group_;
  const uint64_t seed_;
  mutable std::mutex mutex_;
  mutable std::optional<lockstep::data::Cursor> start_;             // of the last seek(); guarded by mutex_
  mutable HandedOut handed_out_;                                    // guarded by mutex_
  mutable int64_t skipped_ = 0;                                     // guarded by mutex_
  mutable std::optional<std::pair<int64_t, uint64_t>> last_first_;  // an epoch, and a digest of its first step
};

}  // namespace lockstep::internal::data
