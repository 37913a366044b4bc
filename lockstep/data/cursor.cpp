#include "lockstep/data/cursor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& reason) {
  throw UsageError("LS-STATE-MISFIT", fmt::format("a text is no cursor: {}", reason),
                   "give what data::to_json(cursor) gave");
}

/// The whole number that `value` is, where a T holds it.
template <class T>
std::optional<T> whole(const json& value) {
  const auto held = [](auto number) { return std::in_range<T>(number) ? std::optional<T>(number) : std::nullopt; };
  if (value.is_number_unsigned()) return held(value.get<uint64_t>());
  if (value.is_number_integer()) return held(value.get<int64_t>());
  return std::nullopt;
}

const json& member(const json& cursor, const char* name) {
  const auto found = cursor.find(name);
  if (found == cursor.end()) refuse(fmt::format("it has no '{}'", name));
  return *found;
}

template <class T>
void read_whole(const json& cursor, const char* name, T& number) {
  const std::optional<T> read = whole<T>(member(cursor, name));
  if (!read) refuse(fmt::format("its '{}' is no whole number of 64 bits", name));
  number = *read;
}

}  // namespace

std::string to_json(const Cursor& cursor) {
  nlohmann::ordered_json json{{"epoch", cursor.epoch}, {"position", cursor.position}, {"size", cursor.size},
                              {"seed", cursor.seed},   {"shuffle", cursor.shuffle},   {"digest", cursor.digest}};
  if (cursor.digest_by_file != 0) json["digest_by_file"] = cursor.digest_by_file;
  if (!cursor.stream.empty()) json["stream"] = cursor.stream;
  return json.dump();
}

Cursor cursor_from_json(const std::string& text) {
  const json read = json::parse(text, nullptr, false);
  if (!read.is_object()) refuse("it is no JSON object");
  Cursor cursor;
  read_whole(read, "epoch", cursor.epoch);
  read_whole(read, "position", cursor.position);
  read_whole(read, "size", cursor.size);
  read_whole(read, "seed", cursor.seed);
  const json& shuffle = member(read, "shuffle");
  if (!shuffle.is_boolean()) refuse("its 'shuffle' is neither true nor false");
  cursor.shuffle = shuffle.get<bool>();
  if (read.contains("digest")) read_whole(read, "digest", cursor.digest);
  if (read.contains("digest_by_file")) read_whole(read, "digest_by_file", cursor.digest_by_file);
  if (!read.contains("stream")) return cursor;
  const json& stream = read["stream"];
  if (!stream.is_array()) refuse("its 'stream' is no list");
  for (const json& one : stream) {
    const std::optional<int64_t> number = whole<int64_t>(one);
    if (!number) refuse("its 'stream' has something else than whole numbers of 64 bits");
    cursor.stream.push_back(*number);
  }
  return cursor;
}

}  // namespace lockstep::data
