// Pieces of HTML: escaped texts, numbers for readers, tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline train {

/// The text with nothing in it that HTML reads as anything else than text, also within an attribute in double quotes.
std::string escaped(std::string_view text);

/// JSON as it may stand in a script element: no "<" that could begin a tag.
std::string script_safe(std::string json);

// Numbers for readers.
std::string short_number(double value);               // four significant digits: "0.4022", "9,780", "1.200e-05", "NaN"
std::string whole_number(int64_t value);              // "307,200"
std::string duration_text(double seconds);            // "31.8 s", "12 min 5 s", "3 h 20 min"
std::string size_text(uint64_t bytes);                // "5.1 MB"
std::string percent_text(double part, double whole);  // "81 %"; "0 %" of nothing

/// Rows of cells that are HTML already, below a head of texts. Columns from `numbers_from` on are numbers, flush right.
std::string table_html(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                       std::size_t numbers_from);

}  // namespace lockstep::internal::train
