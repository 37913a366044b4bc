#include "tools/list_flags.h"

#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <CLI/Option.hpp>
#include <algorithm>

namespace lockstep::tools {

namespace {

void check_list(const std::string& flag, const std::string& list, char comma) {
  const auto count = std::count(list.begin(), list.end(), comma) + 1;
  std::size_t begin = 0;
  for (int64_t element = 1; element <= count; ++element) {
    const std::size_t end = std::min(list.find(comma, begin), list.size());
    if (end == begin && count > 1) {
      throw CLI::ValidationError(flag, fmt::format("element {} of the {} of '{}' is empty", element, count, list));
    }
    begin = end + 1;
  }
}

/// The subcommand of this name, or null.
const CLI::App* subcommand(const CLI::App& app, const std::string& name) {
  const auto all = app.get_subcommands([&](const CLI::App* one) { return one->get_name() == name; });
  return all.empty() ? nullptr : all.front();
}

}  // namespace

void check_lists(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  const CLI::Option* list = nullptr;  // to which the next words belong
  for (const std::string& word : words) {
    if (word.rfind("--", 0) == 0) {
      const std::size_t equals = std::min(word.find('='), word.size());
      const CLI::Option* const option = command->get_option_no_throw(word.substr(0, equals));
      list = option != nullptr && option->get_delimiter() != '\0' ? option : nullptr;
      if (list != nullptr && equals < word.size())
        check_list(word.substr(0, equals), word.substr(equals + 1), list->get_delimiter());
    } else if (list != nullptr) {
      check_list(list->get_name(), word, list->get_delimiter());
    } else if (const CLI::App* const named = subcommand(*command, word)) {
      command = named;
    }
  }
}

}  // namespace lockstep::tools
