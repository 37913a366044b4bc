#include "lockstep/checkpoint/folder/manifest.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/checkpoint/content_checksum.h"
#include "lockstep/checkpoint/formats/aggregation_names.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline checkpoint {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr std::string_view kBeforeChecksum = "{\"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\",\n";
constexpr std::size_t kChecksumDigits = 32;
constexpr uint64_t kOldestFormat = 1;

/// JSON has no text for numbers that are not finite.
ordered_json json_of_real(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double real_of(const json& value, const std::string& what) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  throw_damaged(what, "has a 'real' that is no number");
}

/// A list with one line for each element.
void add_list(std::string& text, const char* name, const std::vector<std::string>& lines) {
  text += fmt::format("\"{}\": [", name);
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + lines[i];
  text += "],\n";
}

void add_texts(std::string& text, const char* name, const std::map<std::string, std::string>& texts, const char* end) {
  text += fmt::format("\"{}\": {{", name);
  const char* separator = "\n  ";
  for (const auto& [key, value] : texts) {
    text += fmt::format("{}{}: {}", separator, json(key).dump(), value);
    separator = ",\n  ";
  }
  text += "}" + std::string(end);
}

std::map<std::string, std::string> texts_in(const json& object, const char* key, const std::string& what) {
  const json& member = member_of(object, key, what);
  if (!member.is_object()) throw_damaged(what, fmt::format("has a '{}' that is no object", key));
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : member.items()) texts[name] = value.dump();
  return texts;
}

std::map<std::string, std::string> names_in(const json& member, const std::string& what) {
  if (!member.is_object()) throw_damaged(what, "has 'other_names' that are no object");
  std::map<std::string, std::string> names;
  for (const auto& [other, own] : member.items()) {
    if (!own.is_string()) throw_damaged(what, "has 'other_names' with something else among them");
    names[other] = own.get<std::string>();
  }
  return names;
}

RecordedNumbers numbers_of(const json& entry, const std::string& what) {
  RecordedNumbers numbers{.kind = text_in(entry, "kind", what), .name = text_in(entry, "name", what)};
  if (entry.contains("real")) {
    numbers.real = real_of(entry["real"], what);
    return numbers;
  }
  for (const json& value : array_in(entry, "integers", what)) {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
      throw_damaged(what, "has 'integers' with something else among them");
    }
    numbers.integers.push_back(value.get<int64_t>());
  }
  return numbers;
}

/// In format 1 each tensor is one piece.
uint64_t piece_bytes_in(const json& object, uint64_t format, const std::string& what) {
  if (format == 1) return std::numeric_limits<uint64_t>::max();
  const uint64_t bytes = natural_in(object, "piece_bytes", what);
  if (bytes == 0) throw_damaged(what, "has pieces of 0 bytes");
  return bytes;
}

std::vector<std::string> checksums_in(const json& entry, uint64_t format, const std::string& what) {
  if (format == 1) return {text_in(entry, "checksum", what)};
  std::vector<std::string> checksums;
  for (const json& one : array_in(entry, "checksums", what)) {
    if (!one.is_string()) throw_damaged(what, "has 'checksums' with something else among them");
    checksums.push_back(one.get<std::string>());
  }
  return checksums;
}

/// A file of the checkpoint's own folder.
std::string file_name_in(const json& entry, const std::string& what) {
  const std::string name = text_in(entry, "name", what);
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
    throw_damaged(what, fmt::format("names the file '{}', which is in no checkpoint's folder", shown(name)));
  }
  return name;
}

/// An item has one value for all replicas, or one for each, in their order.
void require_all_replicas(const Manifest& manifest, const std::string& what) {
  constexpr int64_t kOneForAll = -1;
  std::map<std::pair<std::string, std::string>, int64_t> values;  // how many, by kind and name
  const auto refuse = [&](const std::string& name) {
    throw_damaged(what, fmt::format("has neither one value of '{}' nor one for each of {} replicas", shown(name),
                                    manifest.run.replicas));
  };
  for (const RecordedTensor& one : manifest.tensors) {
    int64_t& count = values[{one.kind, one.name}];
    const bool is_for_all = one.replica == kOneForAll && count == 0;
    if (count == kOneForAll || (!is_for_all && one.replica != count)) refuse(one.name);
    count = is_for_all ? kOneForAll : count + 1;
  }
  for (const auto& [key, count] : values) {
    if (count != kOneForAll && count != manifest.run.replicas) refuse(key.second);
  }
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  const RunRecord& run = manifest.run;
  const auto text_of = [](const std::string& value) { return json(value).dump(); };
  std::string text = fmt::format(
      "\"format\": {},\n\"piece_bytes\": {},\n\"library\": {},\n\"platform\": {},\n\"fingerprint\": {},\n\"strategy\": "
      "{},\n"
      "\"replicas\": {},\n\"workers\": {},\n\"step\": {},\n\"sequence\": {},\n",
      kCheckpointFormat, manifest.piece_bytes, text_of(run.library), text_of(run.platform), text_of(run.fingerprint),
      text_of(run.strategy), run.replicas, run.workers, run.step, run.sequence);
  if (run.threads_per_replica > 0) {
    text += fmt::format("\"threads_per_replica\": {},\n\"denormals\": {},\n", run.threads_per_replica,
                        text_of(run.denormals));
  }
  std::vector<std::string> lines;
  for (const RecordedFile& one : manifest.files) {
    lines.push_back(
        ordered_json{{"name", one.name}, {"bytes", one.bytes}, {"header_checksum", one.header_checksum}}.dump());
  }
  add_list(text, "files", lines);
  lines.clear();
  for (const RecordedTensor& one : manifest.tensors) {
    ordered_json line{{"kind", one.kind}, {"name", one.name},   {"replica", one.replica},    {"file", one.file},
                      {"key", one.key},   {"dtype", one.dtype}, {"checksums", one.checksums}};
    if (!one.aggregation.empty()) line["aggregation"] = one.aggregation;
    lines.push_back(line.dump());
  }
  add_list(text, "tensors", lines);
  lines.clear();
  for (const RecordedNumbers& one : run.numbers) {
    ordered_json line{{"kind", one.kind}, {"name", one.name}};
    if (one.real) {
      line["real"] = json_of_real(*one.real);
    } else {
      line["integers"] = one.integers;
    }
    lines.push_back(line.dump());
  }
  add_list(text, "numbers", lines);
  if (!run.other_names.empty()) {
    std::map<std::string, std::string> quoted;
    for (const auto& [other, own] : run.other_names) quoted.emplace(other, text_of(own));
    add_texts(text, "other_names", quoted, ",\n");
  }
  if (!run.tables.empty()) add_texts(text, "tables", run.tables, ",\n");
  if (!run.scheduled.empty()) text += fmt::format("\"scheduled\": {},\n", run.scheduled);
  add_texts(text, "data", run.data, ",\n");
  add_texts(text, "values", run.values, "}\n");
  return std::string(kBeforeChecksum) + content_checksum(text) + std::string(kAfterChecksum) + text;
}

Manifest decode_manifest(std::string_view text, const std::string& what) {
  constexpr std::size_t kFirstLine = kBeforeChecksum.size() + kChecksumDigits + kAfterChecksum.size();
  if (!text.starts_with(kBeforeChecksum) || text.size() < kFirstLine ||
      text.substr(kFirstLine - kAfterChecksum.size(), kAfterChecksum.size()) != kAfterChecksum) {
    throw_damaged(what, "does not begin with a checksum");
  }
  if (content_checksum(text.substr(kFirstLine)) != text.substr(kBeforeChecksum.size(), kChecksumDigits)) {
    throw_damaged(what, "does not have the checksum that its first line says");
  }
  const json object = parse_object(text, what, kManifestDepth);
  const uint64_t format = natural_in(object, "format", what);
  if (format < kOldestFormat || format > kCheckpointFormat) {
    throw DataError("LS-CHECKPOINT-VERSION",
                    fmt::format("{} is of format {}; this version of Lockstep reads formats {} to {}", what, format,
                                kOldestFormat, kCheckpointFormat),
                    "use the version of Lockstep that wrote it, or a newer one");
  }
  Manifest manifest{.format = format, .piece_bytes = piece_bytes_in(object, format, what)};
  RunRecord& run = manifest.run;
  run.library = text_in(object, "library", what);
  run.platform = text_in(object, "platform", what);
  run.fingerprint = text_in(object, "fingerprint", what);
  run.strategy = text_in(object, "strategy", what);
  run.replicas = integer_in(object, "replicas", what);
  run.workers = integer_in(object, "workers", what);
  run.step = integer_in(object, "step", what);
  run.sequence = natural_in(object, "sequence", what);
  if (object.contains("threads_per_replica")) {
    run.threads_per_replica = integer_in(object, "threads_per_replica", what);
    run.denormals = text_in(object, "denormals", what);
  }
  for (const json& entry : array_in(object, "files", what)) {
    manifest.files.push_back(
        {file_name_in(entry, what), natural_in(entry, "bytes", what), text_in(entry, "header_checksum", what)});
  }
  for (const json& entry : array_in(object, "tensors", what)) {
    manifest.tensors.push_back({text_in(entry, "kind", what), text_in(entry, "name", what),
                                integer_in(entry, "replica", what), natural_in(entry, "file", what),
                                text_in(entry, "key", what), text_in(entry, "dtype", what),
                                checksums_in(entry, format, what),
                                entry.contains("aggregation") ? text_in(entry, "aggregation", what) : std::string()});
    if (const std::string& word = manifest.tensors.back().aggregation; !is_aggregation_name(word))
      throw_damaged(what, fmt::format("has the aggregation '{}'", shown(word)));
    if (manifest.tensors.back().file >= manifest.files.size())
      throw_damaged(what, "names a file that it does not list");
  }
  for (const json& entry : array_in(object, "numbers", what)) run.numbers.push_back(numbers_of(entry, what));
  if (object.contains("other_names")) run.other_names = names_in(object["other_names"], what);
  if (object.contains("tables")) run.tables = texts_in(object, "tables", what);
  if (object.contains("scheduled")) {
    if (!object["scheduled"].is_object()) throw_damaged(what, "has a 'scheduled' that is no object");
    run.scheduled = object["scheduled"].dump();
  }
  run.data = texts_in(object, "data", what);
  run.values = texts_in(object, "values", what);
  require_all_replicas(manifest, what);
  return manifest;
}

}  // namespace lockstep::internal::checkpoint
