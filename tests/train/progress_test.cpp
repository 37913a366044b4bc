// What progress() writes to a terminal and to a log file.
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <regex>

#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

/// While it lives, standard error is a terminal of so many columns.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    if (openpty(&reader_, &terminal, nullptr, nullptr, &size) != 0) throw std::runtime_error("there is no terminal");
    std::fflush(stderr);
    before_ = dup(STDERR_FILENO);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
    setenv("TERM", "xterm", 1);
    unsetenv("LOCKSTEP_PROGRESS");
  }
  ~Terminal() {
    if (before_ >= 0) put_back();
    close(reader_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// What was written, with the terminal's "\r\n" as "\n". Standard error is what it was.
  std::string text() {
    put_back();
    std::string text;
    fcntl(reader_, F_SETFL, O_NONBLOCK);
    for (char piece[4096];;) {
      const ssize_t size = read(reader_, piece, sizeof(piece));
      if (size <= 0) break;
      text.append(piece, static_cast<std::size_t>(size));
    }
    return std::regex_replace(text, std::regex("\r\n"), "\n");
  }

 private:
  void put_back() {
    std::fflush(stderr);
    dup2(before_, STDERR_FILENO);
    close(std::exchange(before_, -1));
  }
  int reader_ = -1;
  int before_ = -1;
};

/// Fits as long as it takes to see a bar.
void fit_for_a_second(Strategy& strategy, std::vector<std::shared_ptr<Callback>> callbacks = {}) {
  const Setting setting(strategy);
  Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = cross_entropy, .metrics = {accuracy_spec()}});
  trainer.fit(setting.train,
              {.epochs = 1000000, .callbacks = std::move(callbacks), .time = std::chrono::milliseconds(1300)});
}

int64_t count_of(const std::string& text, const std::string& piece) {
  int64_t count = 0;
  for (std::size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++count;
  return count;
}

}  // namespace

TEST(ProgressOnATerminal, IsOneLineThatFitsAndEndsWithANewline) {
  Terminal terminal(100);
  run_workers({2, 2, 1}, [](Strategy& strategy) {  // which have one bar
    fit_for_a_second(strategy);
    return 0;
  });
  const std::string text = terminal.text();
  const std::regex bar("\repoch [0-9]+/1000000  [^\r\n]*[0-9]:[0-9]{2}( < [0-9:]+)?  [^\r\n]*/s[^\r\n]*\x1b\\[K");
  const auto first = std::sregex_iterator(text.begin(), text.end(), bar);
  const auto bars = std::distance(first, std::sregex_iterator());
  EXPECT_GE(bars, 1) << text;
  EXPECT_LE(bars, 10) << "more than ten draws a second, or more than one bar for the job: " << text;
  for (auto it = first; it != std::sregex_iterator(); ++it) {
    EXPECT_LT(it->str().size() - std::string("\r\x1b[K").size(), 100u) << it->str();
  }
  EXPECT_EQ(count_of(text, "\x1b"), count_of(text, "\x1b[K")) << "no other thing is asked of the terminal";
  EXPECT_TRUE(std::regex_search(text, std::regex("\repoch [0-9]+/1000000  [0-9.]+ s  loss [0-9.e-]+  accuracy [0-9.]+  "
                                                 "[0-9,]+ samples/s  input [0-9]+ %  waiting [0-9]+ %  "
                                                 "communication [0-9]+ %\x1b\\[K\n")))
      << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("\nstopped after epoch [0-9]+: the time of the fit is over\n$")))
      << text;
}

TEST(ProgressOnATerminal, LeavesTheLineWhereTheFitThrows) {
  Terminal terminal(80);
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const auto thrower = callbacks::each_step([](Trainer& trainer, const Logs&) {
      if (trainer.status().seconds > 0.8) throw std::runtime_error("as asked");
    });
    EXPECT_THROW(fit_for_a_second(strategy, {thrower}), std::runtime_error);
    return 0;
  });
  const std::string text = terminal.text();
  EXPECT_GE(count_of(text, "\r"), 1) << text;
  EXPECT_TRUE(text.ends_with("\n")) << text;
}

TEST(ProgressOnATerminal, IsNotThereWhereItIsSwitchedOff) {
  Terminal terminal(80);
  run_workers({1, 1, 1}, [](Strategy& strategy) {
    fit_for_a_second(strategy, {callbacks::progress({.style = callbacks::ProgressStyle::kOff})});
    return 0;
  });
  EXPECT_EQ(terminal.text(), "");
}

TEST(ProgressInAFile, IsALineNowAndThenWithTheTimeOfDay) {
  Terminal terminal(80);
  run_workers({1, 1, 1}, [](Strategy& strategy) {
    fit_for_a_second(strategy, {callbacks::progress({.style = callbacks::ProgressStyle::kLines})});
    return 0;
  });
  const std::string text = terminal.text();
  EXPECT_EQ(count_of(text, "\r"), 0) << text;
  EXPECT_EQ(count_of(text, "\x1b"), 0) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("^[0-9]{2}:[0-9]{2}:[0-9]{2} fit: 1000000 epochs, [0-9]+ steps, 1 "
                                                 "replica on 1 lane, 1 worker\n")))
      << text;
  EXPECT_TRUE(
      std::regex_search(text, std::regex("\n[0-9:]{8} epoch [0-9]+/1000000  loss [0-9.e-]+  accuracy [0-9.]+  ")))
      << text;
  EXPECT_LE(count_of(text, "\n"), 5) << "more than a line a second: " << text;
}

}  // namespace lockstep::testing
