// Flags whose value is a list with commas.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace lockstep::tools {

/// Throws a CLI::ValidationError where a list of `words`, the command line without the program's own name, has an empty
/// element. The parser would leave that out without a word.
void check_lists(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace lockstep::tools
