// JSON from files that may be damaged or hostile. Only the .cpp files of this folder and the fuzz targets include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline checkpoint {

/// Parses an object. A DataError (LS-CHECKPOINT-DAMAGED) that begins with `what` where the text is none, where a key
/// stands twice in an object, or where it nests deeper than `depth`.
nlohmann::json parse_object(std::string_view text, const std::string& what, std::size_t depth);

/// Throws the DataError LS-CHECKPOINT-DAMAGED: "<what> <problem>".
[[noreturn]] void throw_damaged(const std::string& what, const std::string& problem);

// A member of an object, of the right type; otherwise the same error.

const nlohmann::json& member_of(const nlohmann::json& object, const char* key, const std::string& what);
std::string text_in(const nlohmann::json& object, const char* key, const std::string& what);
int64_t integer_in(const nlohmann::json& object, const char* key, const std::string& what);
uint64_t natural_in(const nlohmann::json& object, const char* key, const std::string& what);
const nlohmann::json& array_in(const nlohmann::json& object, const char* key, const std::string& what);
/// Integers from 0 to the largest int64, as in a shape.
std::vector<int64_t> naturals_in(const nlohmann::json& object, const char* key, const std::string& what);

/// Whether a text is UTF-8, as JSON needs it.
bool is_utf8(std::string_view text);

/// What can be shown of a name in a file: printable ASCII, and not too long.
std::string shown(std::string_view name);

}  // namespace lockstep::internal::checkpoint
