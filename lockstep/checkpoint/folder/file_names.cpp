#include "lockstep/checkpoint/folder/file_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

namespace lockstep::internal::inline checkpoint {

namespace {

// By WriterFile.
constexpr std::array<std::string_view, 5> kWriterStems{"probe", "mark", "mark-new", "record", "record-new"};

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_stem_of_tensors(std::string_view stem) {
  return std::any_of(std::begin(kStems), std::end(kStems), [&](const auto& one) { return one.first == stem; });
}

/// "record3"
bool is_stem_of_writer(std::string_view stem) {
  return std::any_of(kWriterStems.begin(), kWriterStems.end(),
                     [&](std::string_view one) { return stem.starts_with(one) && is_number(stem.substr(one.size())); });
}

/// Whether `rest`, what follows a stem, is a number between a dot and `end`.
bool is_numbered(std::string_view rest, std::string_view end) {
  return rest.size() > end.size() && rest.front() == '.' && rest.ends_with(end) &&
         is_number(rest.substr(1, rest.size() - end.size() - 1));
}

std::pair<std::string_view, std::string_view> stem_and_rest(std::string_view name) {
  const std::size_t dot = std::min(name.find('.'), name.size());
  return {name.substr(0, dot), name.substr(dot)};
}

}  // namespace

std::string file_name(std::string_view stem, uint64_t generation) {
  return generation == 0 ? fmt::format("{}.safetensors", stem) : fmt::format("{}.{}.safetensors", stem, generation);
}

std::string part_name(std::string_view stem, uint64_t save) { return fmt::format("{}.{}.part", stem, save); }

std::string writer_file_name(WriterFile file, int64_t worker, uint64_t save) {
  return part_name(fmt::format("{}{}", kWriterStems[static_cast<std::size_t>(file)], worker), save);
}

std::string reading_mark_name(std::string_view checkpoint) { return fmt::format(".reading-{}", checkpoint); }

bool is_unfinished(std::string_view name) {
  const auto [stem, rest] = stem_and_rest(name);
  if (!is_numbered(rest, ".part")) return false;
  return is_stem_of_tensors(stem) || stem == kManifestStem;
}

bool is_writer_file(std::string_view name) {
  const auto [stem, rest] = stem_and_rest(name);
  return is_numbered(rest, ".part") && is_stem_of_writer(stem);
}

bool is_name_of_tensors(std::string_view name) {
  const auto [stem, rest] = stem_and_rest(name);
  return is_stem_of_tensors(stem) && (rest == ".safetensors" || is_numbered(rest, ".safetensors"));
}

}  // namespace lockstep::internal::checkpoint
