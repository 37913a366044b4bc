// The steps that the iterators of a data set have given, and which of them were used.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/per_replica.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/replica/loss/batch_uses.h"

namespace lockstep::internal::inline data {

/// What a part of a batch is known by; null where it has no ids.
BatchKey key_of(const Batch& part);

/// A step is used when a run that was given it has completed, when the program said so, or when the loop has gone on
/// and nobody holds it any more. A step that the loop holds otherwise was not used. Only where the program has shown
/// that it uses batches without run(), it counts as used, with a doubt. One thread at a time.
class HandedOut {
 public:
  /// `uses` are those of the strategy.
  explicit HandedOut(BatchUses& uses) : uses_(uses) {}
  ~HandedOut();
  HandedOut(const HandedOut&) = delete;
  HandedOut& operator=(const HandedOut&) = delete;

  /// What is probably a mistake of the program, where it asked for a place.
  enum class Doubt {
    kNone,
    kHeld,    // the loop holds a step of which no run tells whether it was used
    kWentBy,  // a step that did not count as used when a place was asked for went by without a run
  };
  struct Place {
    std::optional<lockstep::data::Cursor> cursor;  // nothing where no step was given yet
    Doubt doubt = Doubt::kNone;
  };

  /// A step was given that lies between two places; `entry` is what the ledger says of it.
  void give(const PerReplica<Batch>& step, const lockstep::data::Cursor& before, const lockstep::data::Cursor& behind,
            const lockstep::data::LedgerEntry& entry);
  /// The loop asks for the step after this one.
  Doubt pass(const PerReplica<Batch>& step);
  /// The place behind the last step that was used.
  Place place();
  /// All steps that were given are used: the program says so.
  void use_all();
  /// The program continues at a place.
  void seek(const lockstep::data::Cursor& cursor);
  /// What was used, by epoch.
  std::vector<lockstep::data::LedgerEntry> ledger();

 private:
  struct Step {
    lockstep::data::Cursor before;
    lockstep::data::Cursor behind;
    lockstep::data::LedgerEntry entry;
    std::vector<at::Tensor> ids;  // of the parts: they keep the memory of the keys
    std::vector<BatchKey> keys;
    std::shared_ptr<BatchUse> use;
    int64_t runs_without = 0;  // when it was given
    bool passed = false;
    bool asked = false;  // a place was asked for while it did not count as used
    /// Whether anybody has a part of it, or the memory of its ids. That is known by use counts: who keeps a part, or
    /// its ids, for another purpose than to train on it, such as a log, holds the step as the loop does.
    bool is_held() const;
  };

  Doubt settle();
  /// Whether the step that the loop holds counts as used, although nothing says so.
  bool is_probably_used() const;
  void close(std::size_t count);
  void add(const lockstep::data::LedgerEntry& entry);

  BatchUses& uses_;
  std::optional<lockstep::data::Cursor> place_;
  std::deque<Step> open_;                                  // in the order in which they were given
  bool tells_ = false;                                     // runs, or the program, say which steps were used
  bool went_by_ = false;                                   // a step went by of which nothing was said
  std::map<int64_t, lockstep::data::LedgerEntry> ledger_;  // by epoch
};

}  // namespace lockstep::internal::data
