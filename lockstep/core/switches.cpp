#include "lockstep/core/switches.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline core {

std::string_view switch_text(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? text : "";
}

void refuse_switch(const char* variable, std::string_view text, const std::vector<std::string_view>& words,
                   std::string_view if_unset) {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) {
    list += i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
    list += words[i];
  }
  throw UsageError("LS-ENVIRONMENT", fmt::format("{} is '{}'", variable, text),
                   fmt::format("set it to {}, or leave it unset{}", list, if_unset));
}

}  // namespace lockstep::internal::core
