// The rows of one table that lie on one server: look-ups, updates, admission, eviction, limits and cuts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/optim/loops/clip.h"
#include "lockstep/server/embedding_options.h"
#include "lockstep/server/table/initial_rows.h"
#include "lockstep/server/table/row_rule.h"
#include "lockstep/server/table/row_store.h"
#include "lockstep/server/table/table_cut.h"

namespace lockstep::internal::inline server {

/// What a step does to a table on one server.
struct RowPush {
  std::span<const int64_t> ids;
  /// `dim` numbers for each id: float64 for a table of float64, otherwise float32. Where an id comes several times, its
  /// rows are added in the order in which they stand, and the row is updated once.
  const void* gradients;
  double learning_rate;
  int64_t position;  // the step's; it ascends from push to push, from 1
  Clip clip = {};
};

/// One thread uses a table: the one that carries out the log. Cuts are read on other threads.
///
/// All that a table holds is a function of its seed and of what apply(), evict() and load() were given, in their order.
/// A row depends on nothing that was done to other rows, so that its bits are the same on any number of servers, in any
/// order of the ids of a push. Its update gives the bits that the fused update gives a variable of the row's numbers.
///
/// Each function throws a UsageError, before it has done anything, where an id is not a row of the table
/// (LS-ROW-RANGE), and an InternalError where a row does not lie on this server.
class RowTable {
 public:
  /// `options` is checked. This is the part on `server` of `servers`.
  RowTable(EmbeddingOptions options, uint64_t seed, int64_t server = 0, int64_t servers = 1);

  /// Updates go by this rule from now on. A table without a rule holds no rows, and cannot be pushed to. With rows in
  /// it a rule of other slots is a UsageError (LS-ROW-RULE).
  void use(std::shared_ptr<const RowRule> rule);

  /// Writes the weights of each id in the table's dtype, row by row. With `positions` also at which position each row
  /// changed last; for a row that is not here that is the last eviction's, or 0. Changes nothing.
  void look_up(std::span<const int64_t> ids, void* weights, int64_t* positions = nullptr) const;

  /// Throws a UsageError (LS-TABLE-FULL) where the table, with a push of these ids and with `others` more rows of
  /// pushes that may come before it, would be over its limit. A push that was let through is never refused later.
  void check_room(std::span<const int64_t> ids, int64_t others = 0) const;
  /// How many of these ids would be new rows, or new counts.
  int64_t count_new(std::span<const int64_t> ids) const;

  /// Carries out a push. It keeps no count of steps that did not count: give it none of them.
  void apply(const RowPush& push);

  /// Forgets each row, and each count of a row that is not admitted yet, that no push has named at a position of at
  /// least `before`; gives how many. `position` is this call's own.
  int64_t evict(int64_t before, int64_t position);

  /// The table as it is now, for another thread to read while this one goes on.
  TableCut cut();
  /// Takes the rows that lie on this server, whatever server they were saved on; those that are here already are
  /// replaced. Throws a UsageError (LS-STATE-MISFIT) for rows without the slots, counts and shapes of this table,
  /// before it has taken any.
  void load(const SavedRows& rows);
  void load(const SavedCounts& counts);
  /// Has the rows and counts of `other`, a table of the same options and rule, in place of its own.
  void take(RowTable&& other) noexcept;
  /// What its rows consist of.
  RowFormat format() const;

  const EmbeddingOptions& options() const { return options_; }
  int64_t size() const { return rows_.size(); }
  /// Rows that are counted and not admitted yet.
  int64_t counted() const { return seen_.size(); }
  /// All memory that the table takes: rows, slots, ids, positions, counts, index, and what cuts still hold.
  int64_t bytes() const;

 private:
  static constexpr std::size_t kBatch = 16;  // rows that are looked for, and updated, together

  struct Batch;
  /// A value for each row of the batches that are under way.
  template <class T>
  struct Ring {
    T values[4 * kBatch];
    T& operator[](std::size_t k) { return values[k % (4 * kBatch)]; }
  };
  template <class AskIndex, class AskRow, class Use>
  static void for_each_batch(std::size_t count, const AskIndex& ask_index, const AskRow& ask_row, const Use& use);
  void check_range(int64_t id) const {
    if (options_.rows > 0 && static_cast<uint64_t>(id) >= static_cast<uint64_t>(options_.rows)) refuse(id);
  }
  uint64_t hash_of(int64_t id) const;  // checks the id
  /// The hashes of all ids, checked.
  void hash(std::span<const int64_t> ids, std::vector<uint64_t>& hashes) const;
  [[noreturn]] void refuse(int64_t id) const;
  [[noreturn]] void refuse_misplaced(int64_t id) const;
  /// Counts the push of a row that is not here; whether it is admitted by that.
  bool admits(int64_t id, uint64_t hash, int64_t position);
  uint32_t make_row(int64_t id, uint64_t hash);
  void forget(RowStore& store, int64_t id, uint64_t hash) const;
  void remove(RowStore& store, uint32_t place, uint64_t hash) const;
  int64_t evict(RowStore& store, int64_t before) const;
  /// How many of these ids would be rows, and how many counts, that are not here.
  struct New {
    int64_t rows = 0;
    int64_t counts = 0;
  };
  New new_of(std::span<const int64_t> ids) const;
  /// The numbers of a row's `update`-th update; the last ones are remembered.
  const Coefficients& coefficients_of(uint32_t update, double learning_rate);
  template <class Stored>
  void apply_distinct(const RowPush& push);
  template <class Stored>
  void update(const Batch& batch, const RowPush& push);

  const EmbeddingOptions options_;
  const uint64_t number_;  // of the table, by its name
  const int64_t server_;
  const int64_t servers_;
  const InitialRows initial_;
  const int64_t row_bytes_;  // of a row's weights
  std::shared_ptr<const RowRule> rule_;
  std::vector<char> fresh_slots_;  // of a row that was not updated yet
  RowStore rows_;                  // weights, then each slot; counts are of updates
  RowStore seen_;                  // rows that are not admitted yet: counts are of pushes; there are no values
  int64_t evicted_at_ = 0;
  std::vector<uint64_t> hashes_;  // of a push
  /// By the lower bits of an update's number; 0: none. All are of one learning rate.
  struct Known {
    uint32_t update = 0;
    Coefficients coefficients;
  };
  std::vector<Known> known_;
  double known_rate_ = 0;
  std::vector<char> scratch_;  // a batch of rows of half precision as float32
};

}  // namespace lockstep::internal::server
