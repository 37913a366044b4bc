#include "lockstep/data/formats/records/side_files.h"

#include <algorithm>
#include <array>
#include <string>

namespace lockstep::internal::inline data {

namespace {

// In lower case: the systems that write them do not tell cases apart.
constexpr std::array<std::string_view, 12> kNames{"__macosx",     "@eadir",      "#recycle",  "#snapshot",
                                                  "lost+found",   "desktop.ini", "thumbs.db", "ehthumbs.db",
                                                  "$recycle.bin", "thumbnails",  "icon\r",    "__pycache__"};

}  // namespace

bool is_beside_data(std::string_view name) {
  if (name == "." || name == "..") return false;
  if (name.starts_with('.') || name.ends_with('~')) return true;
  std::string lower(name);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower.ends_with(".lock") || lower == "system volume information") return true;
  return std::find(kNames.begin(), kNames.end(), lower) != kNames.end();
}

}  // namespace lockstep::internal::data
