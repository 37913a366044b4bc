#include "lockstep/gradient/absent_gradients.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/core/log.h"

namespace lockstep::internal::inline gradient {

namespace {

constexpr std::size_t kFew = 4;

/// "a, b, c, d and 2 more"
template <class T>
std::string few_of(const std::vector<T>& all) {
  const std::vector<T> few(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(kFew, all.size())));
  const std::string text = fmt::format("{}", fmt::join(few, ", "));
  return all.size() > kFew ? fmt::format("{} and {} more", text, all.size() - kFew) : text;
}

std::string count_of(std::size_t variables) {
  return fmt::format("{} variable{}", variables, variables == 1 ? "" : "s");
}

}  // namespace

std::vector<std::string> lines_of(const AbsentGradients& absent, int64_t step) {
  std::vector<std::string> lines;
  if (!absent.on_some.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, replicas] : absent.on_some) {
      names.push_back(fmt::format("'{}' (replica {})", name, few_of(replicas)));
    }
    lines.push_back(fmt::format("step {}: no gradient on some replicas, where zero is counted: {}: {}", step,
                                count_of(names.size()), few_of(names)));
  }
  if (!absent.on_all.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : absent.on_all) names.push_back(fmt::format("'{}'", name));
    lines.push_back(fmt::format("step {}: no gradient on any replica, so left untouched, slots included: {}: {}", step,
                                count_of(names.size()), few_of(names)));
  }
  return lines;
}

void log_absent_gradients(const AbsentGradients& absent, int64_t step) {
  for (const std::string& line : lines_of(absent, step)) log(LogLevel::kWarning, line);
}

}  // namespace lockstep::internal::gradient
