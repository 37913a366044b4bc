// How the rows of a table differ between two checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/checkpoint/image.h"

namespace lockstep::tools {

struct TableDifference {
  std::string forms = {};  // how the tables' tensors differ, where they do; then no rows were compared
  int64_t only_first = 0;
  int64_t only_second = 0;
  int64_t both = 0;
  int64_t differing = 0;  // of those that both have
  double largest = 0;     // difference of two weights of a row
  bool is_none() const { return forms.empty() && only_first == 0 && only_second == 0 && differing == 0; }
};

/// Reads both from the first row to the last one, in bounded memory.
TableDifference difference_of_tables(const internal::CheckpointReader& first, const internal::CheckpointReader& second,
                                     const std::string& table);

}  // namespace lockstep::tools
