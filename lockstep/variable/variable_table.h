// A table of variables for a reader, which stays short with any number of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::internal {

class VariableState;

/// One variable, or several that are shown as one.
struct VariableRow {
  std::string name = {};   // "model.conv.weight"
  std::string kind = {};   // "mirrored", "on-read mean", "slot"
  std::string shape = {};  // "Float [64, 3, 7, 7]"
  int64_t bytes = 0;       // of one copy
  int64_t copies = 1;      // of each in this process
  std::string where = {};  // the device whose memory holds it
  int64_t count = 1;       // how many variables this row stands for
};

VariableRow row_of(const VariableState& variable);

/// At most `max_rows` rows, in order of first appearance: where there are more, those of one kind whose names begin
/// alike are shown as one, "model.layer1.*", by the longest beginnings that make them few enough; what is still too
/// much is cut, and counted in the last row.
std::vector<VariableRow> shortened(const std::vector<VariableRow>& rows, std::size_t max_rows);

/// The rows in columns under a heading, and a line with their sums.
std::string table_of(const std::vector<VariableRow>& rows);

}  // namespace lockstep::internal
