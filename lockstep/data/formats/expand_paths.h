// From paths with wildcards to files.
#pragma once

#include <string>
#include <vector>

namespace lockstep::internal::inline data {

/// The files that `patterns` name, in the patterns' order. A pattern is a path; or has *, ? or [...], as in a shell,
/// and gives all files that match, sorted by their bytes; or has one range in braces, "part-{000..012}.tar", and gives
/// a path for each number. Throws a UsageError for no pattern and for a wrong range, and a DataError for a pattern that
/// nothing matches and for a file that is not there or is not a plain one. A file that is named twice is given twice.
std::vector<std::string> expand_paths(const std::vector<std::string>& patterns);

}  // namespace lockstep::internal::data
