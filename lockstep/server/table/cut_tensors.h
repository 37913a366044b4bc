// The rows of a table as named tensors, as checkpoints have them: from a cut to tensors, and back into a table.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/server/table/row_table.h"
#include "lockstep/server/table/table_cut.h"
#include "lockstep/strategy/served_state.h"

namespace lockstep::internal::inline server {

/// The tensors of a cut, with rows ascending by id, so that equal tables have equal bytes: "<table>/ids", "positions",
/// "weights", each slot by its name, and "updates" where rows count them; "counted_ids", "counted_positions" and
/// "counted_pushes" of rows that are not admitted yet, where there are any. They keep the cut, and 4 bytes for each
/// row.
std::vector<ServedTensor> tensors_of(std::shared_ptr<const TableCut> cut);

/// Loads all rows of `source`, some at a time, into a table without rows. A DataError where tensors lack rows, a slot
/// or counts, or have another form, or ids that do not ascend; a UsageError (LS-ROW-RANGE) for an id that is no row.
void load_rows(RowTable& table, const RowFormat& format, SavedTableSource& source);

}  // namespace lockstep::internal::server
