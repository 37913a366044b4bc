// What a person sees while a program runs: a bar on a terminal, plain lines elsewhere, and a table at the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tools {

/// Progress over a known number of steps, on standard error. On a terminal one line that is redrawn ten times a second
/// at most; elsewhere a line for each epoch, and every ten seconds within one.
class Progress {
 public:
  /// `epochs` is how many there will be, or 0 where only steps count.
  Progress(int64_t steps, int64_t epochs);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After each step; `epoch` counts from 0.
  void step(int64_t epoch, int64_t samples, double loss);
  /// At the end of an epoch.
  void epoch(int64_t epoch, double loss);

 private:
  void draw(int64_t epoch, double loss);
  std::string figures(double loss) const;

  const int64_t steps_;
  const int64_t epochs_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
  int64_t done_ = 0;
  int64_t samples_ = 0;
  bool drawn_ = false;
};

/// Prints two columns on standard output.
void print_table(const std::vector<std::pair<std::string, std::string>>& rows);

/// Prints columns on standard output, the first one flush left, the others flush right; all rows have as many cells.
void print_columns(const std::vector<std::vector<std::string>>& rows);

/// Prints JSON on standard output, with bytes that are no UTF-8 replaced.
void print_json(const nlohmann::ordered_json& json);

/// Sends what was printed on standard output on its way. Where that fails, finish_output() says so.
void flush_output();

/// Throws a DataError where something that was printed on standard output has not arrived, as on a disk that is full.
void finish_output();

}  // namespace lockstep::tools
