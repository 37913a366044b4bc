// What a program prints on standard output, and whether it has arrived there.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tools {

/// Prints two columns on standard output.
void print_table(const std::vector<std::pair<std::string, std::string>>& rows);

/// Prints columns on standard output, the first one flush left, the others flush right; all rows have as many cells.
void print_columns(const std::vector<std::vector<std::string>>& rows);

/// Prints JSON on standard output, with bytes that are no UTF-8 replaced.
void print_json(const nlohmann::ordered_json& json);

/// Sends what was printed on standard output on its way. Where that fails, finish_output() says so.
void flush_output();

/// Throws a DataError where something that was printed on standard output has not arrived, as on a disk that is full.
void finish_output();

}  // namespace lockstep::tools
