#include "lockstep/data/formats/expand_paths.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline data {

namespace {

constexpr int64_t kMostInRange = 1'000'000;

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// "a{08..10}b" as "a08b", "a09b", "a10b"; a text without ".." in braces as it is.
std::vector<std::string> expand_range(const std::string& pattern) {
  const std::size_t open = pattern.find('{');
  const std::size_t dots = open == std::string::npos ? open : pattern.find("..", open);
  const std::size_t close = dots == std::string::npos ? dots : pattern.find('}', dots);
  if (close == std::string::npos) return {pattern};
  const std::string first = pattern.substr(open + 1, dots - open - 1);
  const std::string last = pattern.substr(dots + 2, close - dots - 2);
  const auto begin = number(first);
  const auto end = number(last);
  if (!begin || !end || *end < *begin || *end - *begin >= kMostInRange) {
    throw UsageError(
        "LS-OPTION", fmt::format("'{}' has a range from '{}' to '{}'", pattern, first, last),
        fmt::format("give two ascending numbers, at most {} apart: part-{{000..012}}.tar", kMostInRange - 1));
  }
  std::vector<std::string> result;
  for (int64_t i = *begin; i <= *end; ++i) {
    result.push_back(fmt::format("{}{:0{}}{}", pattern.substr(0, open), i, first.size(), pattern.substr(close + 1)));
  }
  return result;
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, &globfree);
  const int code = glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  if (code == GLOB_NOMATCH)
    throw DataError("LS-DATA-FILE", fmt::format("no file matches '{}'", pattern), "check the path");
  if (code != 0)
    throw DataError("LS-DATA-FILE", fmt::format("a folder of '{}' cannot be read", pattern), "check its permissions");
  std::vector<std::string> result(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::sort(result.begin(), result.end());  // glob itself would sort by the locale
  return result;
}

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& patterns) {
  if (patterns.empty()) throw UsageError("LS-OPTION", "a list of files is empty", "name at least one file");
  std::vector<std::string> files;
  std::error_code ignored;
  for (const std::string& pattern : patterns) {
    if (std::filesystem::exists(pattern, ignored)) {
      files.push_back(pattern);
      continue;
    }
    for (const std::string& path : expand_range(pattern)) {
      if (path.find_first_of("*?[") == std::string::npos) {
        files.push_back(path);
      } else {
        const std::vector<std::string> found = matches(path);
        files.insert(files.end(), found.begin(), found.end());
      }
    }
  }
  for (const std::string& file : files) {
    if (std::filesystem::is_regular_file(file, ignored)) continue;
    const bool exists = std::filesystem::exists(file, ignored);
    throw DataError("LS-DATA-FILE", fmt::format("'{}' {}", file, exists ? "is not a plain file" : "does not exist"),
                    "check the path");
  }
  return files;
}

}  // namespace lockstep::internal::data
