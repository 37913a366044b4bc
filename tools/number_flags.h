// Checks for flags that take a number. The parser by itself takes -1 as the largest unsigned number, a number beyond a
// type's range as the type's largest one, 010 as 8, and NaN as a number within any range.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <limits>

namespace lockstep::tools {

/// Takes a whole number from `lowest` to `highest`, in decimal digits. Give it to Option::transform, because the parser
/// is handed the digits without leading zeros.
CLI::Validator whole_number(uint64_t lowest = 1,
                            uint64_t highest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
/// Takes a number from `lowest` to `highest`, and no NaN.
CLI::Validator number_between(double lowest, double highest);
/// Takes a finite number above 0.
CLI::Validator positive_number();

}  // namespace lockstep::tools
