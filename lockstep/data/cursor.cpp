#include "lockstep/data/cursor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"

namespace lockstep::data {

std::string to_json(const Cursor& cursor) {
  nlohmann::ordered_json json{{"epoch", cursor.epoch}, {"position", cursor.position}, {"size", cursor.size},
                              {"seed", cursor.seed},   {"shuffle", cursor.shuffle},   {"digest", cursor.digest}};
  if (cursor.digest_by_file != 0) json["digest_by_file"] = cursor.digest_by_file;
  if (!cursor.stream.empty()) json["stream"] = cursor.stream;
  return json.dump();
}

Cursor cursor_from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    Cursor cursor;
    const auto whole = [&](const char* name) {
      if (!json.at(name).is_number_integer()) throw std::runtime_error(fmt::format("'{}' is no whole number", name));
      return json.at(name);
    };
    cursor.epoch = whole("epoch").get<int64_t>();
    cursor.position = whole("position").get<int64_t>();
    cursor.size = whole("size").get<int64_t>();
    cursor.seed = whole("seed").get<uint64_t>();
    cursor.shuffle = json.at("shuffle").get<bool>();
    if (json.contains("digest")) cursor.digest = whole("digest").get<uint64_t>();
    if (json.contains("digest_by_file")) cursor.digest_by_file = whole("digest_by_file").get<uint64_t>();
    if (json.contains("stream")) {
      for (const auto& number : json.at("stream")) {
        if (!number.is_number_integer()) throw std::runtime_error("'stream' has something else than whole numbers");
        cursor.stream.push_back(number.get<int64_t>());
      }
    }
    return cursor;
  } catch (const std::exception& error) {
    throw UsageError("LS-STATE-MISFIT", fmt::format("a text is no cursor: {}", error.what()),
                     "give what data::to_json(cursor) gave");
  }
}

}  // namespace lockstep::data
