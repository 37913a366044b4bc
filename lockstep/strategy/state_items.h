// The list of everything that the next step of a run depends on, beside the program; for saving it and for comparing
// runs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// One piece of a run's state. Random streams are no items, because they follow from the seed, the step and the number
/// of evaluations.
struct StateItem {
  enum class Kind : uint8_t {
    kMirrored,      // an on-write variable: one value, not that of an average that stands in for it
    kOnRead,        // an on-read variable: the component of each replica of this process
    kSlot,          // an optimizer's slot: one value, or, of a locally trained parameter, one for each local replica
    kStepCount,     // how often an optimizer has updated a variable: an int64 without dimensions
    kLearningRate,  // of one group of an optimizer: a float64 without dimensions
    kNumber,        // of the strategy: an int64 without dimensions
    kCursor,        // of a data set that has a name: the values of data::Cursor, in their order, as one row of int64
    kOption,        // of one group of an optimizer: its weight decay, its momentum, or 1 where it has a schedule; of an
                    // optimizer: how many more steps it has applied than the variable that was updated most often has;
                    // a float64 without dimensions
    kRule,          // of one group of an optimizer: the name of its rule, as a row of int64, one for each byte
  };
  std::string name;  // unique among the items of its kind
  Kind kind = Kind::kNumber;
  /// Copies of the values. Outside of steps, as long as the strategy lives. Of a sliced slot, read() and view() throw a
  /// UsageError (LS-SLOT-SLICED) until Optimizer::gather_slots().
  std::function<std::vector<at::Tensor>()> read;
  /// Sets the values that read() gave, in this process or another. A UsageError where they do not fit, or a DataError
  /// for a cursor of a data set of another size; then nothing of this item has changed. Outside of steps, as long as
  /// the strategy lives. Writes of different items that have a view and one value may run at once on several threads.
  std::function<void(const std::vector<at::Tensor>&)> write;
  /// Whether the values are those of this process's replicas, and not one that all have.
  bool per_replica = false;
  /// The values of read(), in the memory in which the run keeps them: nobody may write them, and the next step or write
  /// changes them. Empty for numbers and cursors.
  std::function<std::vector<at::Tensor>()> view = {};
  /// Of an option: what the optimizer was made with, 0 of counts and schedules. A checkpoint has an option only where
  /// it is something else.
  std::optional<double> made_with = std::nullopt;
  /// Of a rule: whether it is one of torch::optim's. A checkpoint has the name of others alone.
  bool is_of_torch = false;
};

}  // namespace lockstep
