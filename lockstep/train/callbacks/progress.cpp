// progress(): what a person wants to see while a fit runs, on a terminal or in a log file.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <string_view>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/switches.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/callbacks/last_callback.h"
#include "lockstep/train/callbacks/progress_text.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

namespace {

using callbacks::ProgressStyle;
using internal::ProgressFigures;
using Clock = std::chrono::steady_clock;

constexpr double kQuiet = 0.5;      // seconds at the beginning in which nothing is drawn
constexpr double kRedraw = 0.1;     // from one draw to the next
constexpr double kWindow = 10;      // of which the rate is
constexpr double kLine = 10;        // from one line to the next
constexpr double kLongAfter = 600;  // seconds after which lines become rarer
constexpr double kLongLine = 60;
constexpr double kEpochLine = 1;  // from one epoch's line to the next

bool is_terminal() {
  const char* const term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

ProgressStyle style_of(ProgressStyle wanted, ProgressStyle otherwise) {
  if (wanted != ProgressStyle::kAuto) return wanted;
  return internal::choice_of<ProgressStyle>(
      "LOCKSTEP_PROGRESS",
      {{"off", ProgressStyle::kOff}, {"lines", ProgressStyle::kLines}, {"bar", ProgressStyle::kBar}}, otherwise);
}

int64_t columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// One write for each text, so that lines of several programs do not mix.
void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;  // nobody reads it
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string time_of_day() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  return fmt::format("{:02}:{:02}:{:02} ", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

/// "  input 2 %  waiting 1 %": what the time between two states of a fit went into, as far as it was measured.
std::string shares_text(const FitStatus& from, const FitStatus& to, bool has_others) {
  const double all = to.seconds - from.seconds;
  std::string text;
  if (all > 0) text += fmt::format("  input {:.0f} %", 100 * (to.input_seconds - from.input_seconds) / all);
  const double measured = to.parts.seconds - from.parts.seconds;
  if (measured <= 0) return text;
  text += fmt::format("  waiting {:.0f} %", 100 * (to.parts.waiting - from.parts.waiting) / measured);
  if (has_others) {
    text +=
        fmt::format("  communication {:.0f} %", 100 * (to.parts.communication - from.parts.communication) / measured);
  }
  return text;
}

class Progress final : public Callback {
 public:
  explicit Progress(ProgressStyle style) : wanted_(style) {}
  ~Progress() override { close(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  std::string name() const override { return "progress"; }
  bool uses_step_logs() const override { return resolved_style() != ProgressStyle::kOff; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    style_ = trainer.strategy().is_chief() ? resolved_style() : ProgressStyle::kOff;
    if (style_ != ProgressStyle::kOff) trainer.measure_parts();
    epoch_begin_ = {};
    begin_ = last_ = epoch_line_ = Clock::now();
    marks_.clear();
    logs_.clear();
    has_begun_ = false;
  }

  void on_step_end(Trainer& trainer, const Logs& logs) override {
    if (style_ == ProgressStyle::kOff) return;
    const auto now = Clock::now();
    if (!logs.empty()) logs_ = logs;
    note(trainer.status(), now);
    if (!std::exchange(has_begun_, true) && style_ == ProgressStyle::kLines) print_beginning(trainer);
    if (style_ == ProgressStyle::kBar) {
      if (seconds(begin_, now) < kQuiet || seconds(last_, now) < kRedraw) return;
      print("\r" + internal::bar_line(figures(trainer.status(), now), columns()) + "\x1b[K");
      is_drawn_ = true;
    } else {
      if (seconds(last_, now) < (seconds(begin_, now) < kLongAfter ? kLine : kLongLine)) return;
      print(time_of_day() + internal::step_line(figures(trainer.status(), now)) + "\n");
    }
    last_ = now;
  }

  void on_epoch_end(Trainer& trainer, const Logs& logs) override {
    if (style_ == ProgressStyle::kOff) return;
    const auto now = Clock::now();
    const FitStatus& status = trainer.status();
    const bool is_last =
        (status.epochs >= 0 && status.epoch + 1 >= status.epochs) || (status.steps >= 0 && status.step >= status.steps);
    const bool is_soon = seconds(epoch_line_, now) < kEpochLine;
    if (is_soon && !is_last && trainer.stopped().empty()) return;  // the next line has the shares of both epochs
    std::string line =
        fmt::format("epoch {}{}", status.epoch + 1, status.epochs > 0 ? fmt::format("/{}", status.epochs) : "");
    if (style_ == ProgressStyle::kBar) line += fmt::format("  {:.1f} s", seconds(begin_, now));
    line += "  " + internal::logs_text(logs);
    if (const double rate = samples_per_second(); rate > 0) {
      line += fmt::format("  {} samples/s", internal::count_text(rate, false));
    }
    line += shares_text(epoch_begin_, status, trainer.strategy().num_workers() > 1);
    epoch_begin_ = status;
    print(style_ == ProgressStyle::kBar ? "\r" + line + "\x1b[K\n" : time_of_day() + line + "\n");
    is_drawn_ = false;
    epoch_line_ = now;
    last_ = now;
  }

  void on_fit_end(Trainer& trainer, const Logs& /*logs*/) override {
    close();
    if (style_ == ProgressStyle::kOff || trainer.stopped().empty()) return;
    const std::string line = fmt::format("stopped after epoch {}: {}\n", trainer.status().epoch + 1, trainer.stopped());
    print(style_ == ProgressStyle::kBar ? line : time_of_day() + line);
  }
  void on_fit_fail(const std::exception& /*error*/) override { close(); }

 private:
  struct Mark {
    Clock::time_point time;
    int64_t step;
    int64_t samples;
  };

  ProgressStyle resolved_style() const {
    return style_of(wanted_, is_terminal() ? ProgressStyle::kBar : ProgressStyle::kLines);
  }

  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  void close() {
    if (std::exchange(is_drawn_, false)) print("\n");
  }

  void print_beginning(const Trainer& trainer) {
    const FitStatus& status = trainer.status();
    const Strategy& strategy = trainer.strategy();
    std::string text = "fit: ";
    if (status.epochs >= 0) text += internal::counted(status.epochs, "epoch") + ", ";
    if (status.steps >= 0) text += internal::counted(status.steps, "step") + ", ";
    print(fmt::format("{}{}{} on {}, {}\n", time_of_day(), text, internal::counted(strategy.num_replicas(), "replica"),
                      internal::counted(static_cast<int64_t>(strategy.devices().size()), "lane"),
                      internal::counted(strategy.num_workers(), "worker")));
  }

  /// The first step, which warms up, only begins the first mark.
  void note(const FitStatus& status, Clock::time_point now) {
    if (!marks_.empty() && seconds(marks_.back().time, now) < kRedraw) return;
    marks_.push_back({now, status.step, status.samples});
    while (marks_.size() > 2 && seconds(marks_[1].time, now) > kWindow) marks_.pop_front();
  }
  double samples_per_second() const {
    if (marks_.size() < 2) return 0;
    const double time = seconds(marks_.front().time, marks_.back().time);
    return static_cast<double>(marks_.back().samples - marks_.front().samples) / std::max(time, 1e-9);
  }

  ProgressFigures figures(const FitStatus& status, Clock::time_point now) const {
    ProgressFigures figures{.epoch = status.epoch,
                            .epochs = status.epochs,
                            .step = status.step,
                            .steps = status.steps,
                            .seconds = seconds(begin_, now),
                            .samples_per_second = samples_per_second(),
                            .logs = logs_};
    // Validations are part of the window, as far as there were any in it.
    if (marks_.size() >= 2 && status.steps > 0 && marks_.back().step > marks_.front().step) {
      figures.seconds_left = seconds(marks_.front().time, now) /
                             static_cast<double>(marks_.back().step - marks_.front().step) *
                             static_cast<double>(std::max<int64_t>(status.steps - status.step, 0));
    }
    return figures;
  }

  const ProgressStyle wanted_;
  ProgressStyle style_ = ProgressStyle::kOff;
  Clock::time_point begin_;
  Clock::time_point last_;        // when something was written last
  Clock::time_point epoch_line_;  // when the last line of an epoch was written
  std::deque<Mark> marks_;
  Logs logs_;
  FitStatus epoch_begin_;  // as the first epoch began that no line has told of
  bool has_begun_ = false;
  bool is_drawn_ = false;  // a bar stands in the present line
};

}  // namespace

std::shared_ptr<Callback> callbacks::progress(ProgressOptions options) {
  return std::make_shared<Progress>(options.style);
}

bool internal::is_progress(const Callback& callback) { return dynamic_cast<const Progress*>(&callback) != nullptr; }

void internal::add_default_progress(std::vector<std::shared_ptr<Callback>>& callbacks) {
  if (std::any_of(callbacks.begin(), callbacks.end(),
                  [](const auto& one) { return dynamic_cast<const Progress*>(one.get()) != nullptr; })) {
    return;
  }
  const ProgressStyle style = style_of(ProgressStyle::kAuto, is_terminal() ? ProgressStyle::kBar : ProgressStyle::kOff);
  if (style != ProgressStyle::kOff) callbacks.push_back(std::make_shared<Progress>(style));
}

}  // namespace lockstep
