#include "tools/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kLine{10};
constexpr int kBarWidth = 30;

int lost_output = 0;  // why something that was printed has not arrived

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string(term) != "dumb";
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(int64_t steps, int64_t epochs)
    : steps_(std::max<int64_t>(steps, 1)),
      epochs_(epochs),
      terminal_(is_terminal()),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\n", stderr);
}

void Progress::step(int64_t epoch, int64_t samples, double loss) {
  ++done_;
  samples_ += samples;
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    if (now - last_ < kRedraw && done_ < steps_) return;
    draw(epoch, loss);
  } else {
    if (now - last_ < kLine) return;
    std::fputs(fmt::format("step {}/{} {}\n", done_, steps_, figures(loss)).c_str(), stderr);
  }
  last_ = now;
}

void Progress::epoch(int64_t epoch, double loss) {
  if (terminal_) return;
  const std::string of = epochs_ > 0 ? fmt::format("/{}", epochs_) : "";
  std::fputs(fmt::format("epoch {}{} {}\n", epoch + 1, of, figures(loss)).c_str(), stderr);
  last_ = std::chrono::steady_clock::now();
}

void Progress::draw(int64_t epoch, double loss) {
  const int64_t filled = kBarWidth * done_ / steps_;
  const std::string of = epochs_ > 0 ? fmt::format("/{}", epochs_) : "";
  const std::string line =
      fmt::format("\repoch {}{} {:3}% [{:<{}}] {}/{} {}", epoch + 1, of, 100 * done_ / steps_,
                  std::string(static_cast<std::size_t>(filled), '#'), kBarWidth, done_, steps_, figures(loss));
  std::fputs((line + "\x1b[K").c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

std::string Progress::figures(double loss) const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double left = seconds / static_cast<double>(std::max<int64_t>(done_, 1)) * static_cast<double>(steps_ - done_);
  return fmt::format("[{}<{}, {:.0f} samples/s, loss {:.4f}]", clock_text(seconds), clock_text(left),
                     static_cast<double>(samples_) / std::max(seconds, 1e-9), loss);
}

void print_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  for (const auto& [name, value] : rows) std::fputs(fmt::format("{:<{}}  {}\n", name, width, value).c_str(), stdout);
  flush_output();
}

void print_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    std::fputs((line + "\n").c_str(), stdout);
  }
  flush_output();
}

void print_json(const nlohmann::ordered_json& json) {
  std::fputs((json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n").c_str(), stdout);
  flush_output();
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 && lost_output == 0) lost_output = errno;
  std::cout.flush();
}

void finish_output() {
  flush_output();
  if (lost_output == 0 && std::ferror(stdout) == 0 && std::cout) return;
  throw DataError("LS-FILE",
                  std::string("what was to be printed could not be written to standard output: ") +
                      std::strerror(lost_output == 0 ? EIO : lost_output),
                  "make room on its disk, or send it somewhere else");
}

}  // namespace lockstep::tools
