// What a strategy with parameter servers has beside the items of its state, for saving and restoring it: rows of
// tables, and which scheduled steps count.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/data/cursor.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline strategy {

/// One tensor of a table that is saved. Its bytes are made when they are written, so it needs no memory of its own.
struct ServedTensor {
  std::string name;  // "<table>/weights"
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;  // the first one counts rows
  /// Writes the bytes from `begin` on. Any thread, several at once.
  std::function<void(uint64_t begin, std::span<std::byte> to)> read;
};

/// A table at a cut.
struct ServedTable {
  std::string name;
  std::string record;  // what the table is, beside its rows: a JSON object
  std::vector<ServedTensor> tensors;
};

/// The state of all servers, and of the chief, after the same steps.
struct ServedCut {
  std::string steps;  // which scheduled steps count, and where workers' streams are: a JSON object
  std::vector<ServedTable> tables;
};

/// What is so while a cut is made.
struct ServedView {
  bool goes_on = false;  // values change as soon as the function of ServedState::cut() has returned
  /// The place of a data set at the cut; nothing where no scheduled step takes its batches.
  std::function<std::optional<lockstep::data::Cursor>(const DistributedDataset&)> cursor_of;
};

/// A table in a checkpoint that is being read.
class SavedTableSource {
 public:
  struct Form {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
  };
  virtual ~SavedTableSource() = default;
  /// "'runs/a/step-0000000012/tables.safetensors', table 'users'", for messages.
  virtual const std::string& what() const = 0;
  /// Its tensors: by the part of their names that follows the table's, as "weights".
  virtual const std::map<std::string, Form>& forms() const = 0;
  /// The next `count` rows of a tensor. A DataError where their bytes are not those that were written.
  virtual at::Tensor next_rows(const std::string& part, int64_t count) = 0;
};

/// Rows that were read, and are in no table yet.
class StagedTable {
 public:
  virtual ~StagedTable() = default;
};

/// One thread at a time calls these. Names are those of tables.
class ServedState {
 public:
  virtual ~ServedState() = default;

  /// Throws the UsageError of a call of the program that a scheduled step makes.
  virtual void require_outside_of_steps(const char* call) const = 0;
  /// While it lives, calls of this thread wait for no steps: they only read.
  virtual std::shared_ptr<void> reading() = 0;
  /// Waits until what was scheduled before is decided. While it lives, no step changes anything.
  virtual std::shared_ptr<void> changing(const char* call) = 0;

  /// Calls `take` while all values are those after the same steps, which it may copy. Steps go on when it has
  /// returned.
  virtual ServedCut cut(FunctionRef<void(const ServedView&)> take) = 0;

  virtual std::vector<std::string> tables() const = 0;
  /// Why a saved table does not fit the program's table of this name; empty where it does.
  virtual std::string misfit(const std::string& table, const std::string& record) const = 0;
  /// Reads the rows of a table that fits.
  virtual std::shared_ptr<StagedTable> stage(const std::string& table, SavedTableSource& source) const = 0;
  /// Gives the table rows that stage() has read, and what else its record says. Throws nothing.
  virtual void take(const std::string& table, const std::string& record, StagedTable& rows) = 0;
  /// A DataError where a text of ServedCut::steps cannot be read.
  virtual void check_steps(const std::string& steps) const = 0;
  /// Sets which steps count, after the strategy's step was set. An empty text: those that follow from its step.
  virtual void take_steps(const std::string& steps) = 0;
};

/// A strategy that has such a state derives from this too.
class HasServedState {
 public:
  virtual ~HasServedState() = default;
  virtual ServedState& served_state() const = 0;
};

/// Null for all other strategies.
inline ServedState* served_state_of(const Strategy& strategy) {
  const auto* const has = dynamic_cast<const HasServedState*>(&strategy);
  return has == nullptr ? nullptr : &has->served_state();
}

}  // namespace lockstep::internal::strategy
