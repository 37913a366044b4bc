#include "lockstep/checkpoint/formats/strict_json.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline checkpoint {

using nlohmann::json;

void throw_damaged(const std::string& what, const std::string& problem) {
  throw DataError("LS-CHECKPOINT-DAMAGED", what + " " + problem, "use another checkpoint, or copy this one again");
}

std::string shown(std::string_view name) {
  constexpr std::size_t kLongest = 120;
  std::string text;
  for (const char c : name.substr(0, kLongest)) text += c >= 0x20 && c <= 0x7e ? c : '?';
  return name.size() > kLongest ? text + "..." : text;
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(json(text).dump());
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

json parse_object(std::string_view text, const std::string& what, std::size_t depth) {
  // The parser takes one for the text's end, and would leave unread what follows.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw_damaged(what, fmt::format("has a zero at byte {}, which JSON does not have", zero));
  }
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto look = [&](int level, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (level > static_cast<int>(depth)) throw_damaged(what, fmt::format("nests deeper than {}", depth));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw_damaged(what, fmt::format("has '{}' twice", shown(parsed.get<std::string>())));
    }
    return true;
  };
  json value = json::parse(text.begin(), text.end(), look, /*allow_exceptions=*/false);
  if (!value.is_object()) throw_damaged(what, "is not a JSON object");
  return value;
}

const json& member_of(const json& object, const char* key, const std::string& what) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) throw_damaged(what, fmt::format("has no '{}'", key));
  return *found;
}

std::string text_in(const json& object, const char* key, const std::string& what) {
  const json& value = member_of(object, key, what);
  if (!value.is_string()) throw_damaged(what, fmt::format("has a '{}' that is no text", key));
  return value.get<std::string>();
}

int64_t integer_in(const json& object, const char* key, const std::string& what) {
  const json& value = member_of(object, key, what);
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits) throw_damaged(what, fmt::format("has a '{}' that is no integer", key));
  return value.get<int64_t>();
}

uint64_t natural_in(const json& object, const char* key, const std::string& what) {
  const json& value = member_of(object, key, what);
  if (!value.is_number_unsigned()) throw_damaged(what, fmt::format("has a '{}' that is no natural number", key));
  return value.get<uint64_t>();
}

const json& array_in(const json& object, const char* key, const std::string& what) {
  const json& value = member_of(object, key, what);
  if (!value.is_array()) throw_damaged(what, fmt::format("has a '{}' that is no list", key));
  return value;
}

std::vector<int64_t> naturals_in(const json& object, const char* key, const std::string& what) {
  std::vector<int64_t> numbers;
  for (const json& value : array_in(object, key, what)) {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw_damaged(what, fmt::format("has a '{}' with something that is no size", key));
    }
    numbers.push_back(value.get<int64_t>());
  }
  return numbers;
}

}  // namespace lockstep::internal::checkpoint
