#include "lockstep/train/callbacks/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::internal::inline train {

std::string time_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(seconds, 0.0));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string count_text(double count, bool is_short) {
  if (is_short && count >= 1e6) return fmt::format("{:.1f}M", count / 1e6);
  if (is_short && count >= 1e3) return fmt::format("{:.1f}k", count / 1e3);
  std::string digits = fmt::format("{:.0f}", count);
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::string logs_text(const Logs& logs) {
  std::vector<std::pair<int, std::string>> named;
  for (const auto& [name, value] : logs) {
    const bool is_of_validation = name.starts_with("val_");
    const int rank = name == "loss" ? 0 : name == "val_loss" ? 2 : is_of_validation ? 3 : 1;
    const double size = std::abs(value);
    const bool is_plain = value == 0 || (size >= 1e-3 && size < 1e6) || !std::isfinite(value);
    named.emplace_back(rank, is_plain ? fmt::format("{} {:.4f}", name, value) : fmt::format("{} {:.3e}", name, value));
  }
  std::stable_sort(named.begin(), named.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (const auto& [rank, one] : named) text += (text.empty() ? "" : "  ") + one;
  return text;
}

namespace {

constexpr int64_t kBar = 20;

std::string epoch_text(const ProgressFigures& figures) {
  return fmt::format("epoch {}{}", figures.epoch + 1, figures.epochs > 0 ? fmt::format("/{}", figures.epochs) : "");
}

double share(const ProgressFigures& figures) {
  if (figures.steps <= 0) return 0;
  return std::min(1.0, static_cast<double>(figures.step) / static_cast<double>(figures.steps));
}

}  // namespace

std::string bar_line(const ProgressFigures& figures, int64_t width) {
  std::vector<std::string> parts{epoch_text(figures)};
  std::size_t bar_at = 0;
  if (figures.steps > 0) {
    const auto filled = static_cast<int64_t>(share(figures) * kBar);
    parts.push_back(fmt::format("{:.0f} %", std::floor(share(figures) * 100)));
    bar_at = parts.size();
    parts.push_back(fmt::format("[{:#<{}}{:-<{}}]", "", filled, "", kBar - filled));
  }
  parts.push_back(figures.steps > 0 ? fmt::format("{}/{}", figures.step, figures.steps)
                                    : fmt::format("step {}", figures.step));
  parts.push_back(time_text(figures.seconds) +
                  (figures.seconds_left >= 0 ? " < " + time_text(figures.seconds_left) : ""));
  if (figures.samples_per_second > 0) parts.push_back(count_text(figures.samples_per_second, true) + "/s");
  if (const std::string numbers = logs_text(figures.logs); !numbers.empty()) {
    for (std::size_t begin = 0; begin < numbers.size();) {
      const std::size_t end = std::min(numbers.find("  ", begin), numbers.size());
      parts.push_back(numbers.substr(begin, end - begin));
      begin = end + 2;
    }
  }
  const auto joined = [&] {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : "  ") + part;
    return text;
  };
  const auto room = static_cast<std::size_t>(std::max<int64_t>(width - 1, 1));
  std::string line = joined();
  if (line.size() > room && bar_at > 0) {
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(bar_at));
    line = joined();
  }
  while (line.size() > room && parts.size() > 1) {
    parts.pop_back();
    line = joined();
  }
  return line.substr(0, room);
}

std::string step_line(const ProgressFigures& figures) {
  std::string line = fmt::format("step {}{} ({})", figures.step,
                                 figures.steps > 0 ? fmt::format("/{}", figures.steps) : "", epoch_text(figures));
  if (!figures.logs.empty()) line += "  " + logs_text(figures.logs);
  if (figures.samples_per_second > 0)
    line += fmt::format("  {} samples/s", count_text(figures.samples_per_second, false));
  if (figures.seconds_left >= 0) line += "  left " + time_text(figures.seconds_left);
  return line;
}

}  // namespace lockstep::internal::train
