// A table of variables for people to read, which is short for any number of variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::internal::inline variable {

class VariableState;

/// One variable, or several that are shown as one.
struct VariableRow {
  std::string name = {};      // "model.conv.weight"
  std::string kind = {};      // "mirrored", "on-read mean", "slot"
  std::string shape = {};     // "Float [64, 3, 7, 7]"
  int64_t bytes = 0;          // of one copy
  int64_t copies = 1;         // how often each lies in this process; 0: the numbers differ
  std::string where = {};     // the device whose memory holds it
  std::string gradient = {};  // its form; see gradient_form.h
  std::string update = {};    // how several workers bring its gradients together; empty where that is not known
  int64_t sent = -1;          // bytes that this worker sends for that in a step; -1: not counted
  int64_t count = 1;          // how many variables this row stands for
};

VariableRow row_of(const VariableState& variable);

/// At most `max_rows` rows, in order of first appearance. Where there are more, rows of one kind, place and number of
/// copies whose names begin alike become one row, "model.layer1.*"; the beginnings are the longest that make the rows
/// few enough. If there are still too many, a last row, "...", stands for the rest.
std::vector<VariableRow> shortened(const std::vector<VariableRow>& rows, std::size_t max_rows);

/// The rows in columns under a heading, and a line with their sums.
std::string table_of(const std::vector<VariableRow>& rows);

}  // namespace lockstep::internal::variable
