// The log of the samples that `lockstep train` uses, also over stops and resumes.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace lockstep::tools {

/// Lines "epoch step replica sample", collected in "<path>.part"; commit() renames it. An empty path: no file.
class SampleLog {
 public:
  /// Of a run that saves checkpoints (`is_kept`), the part stays without a commit. A run that `goes_on` keeps the lines
  /// of an earlier part. A DataError where the file cannot be made.
  SampleLog(std::string path, bool is_kept, bool goes_on);
  ~SampleLog();
  SampleLog(const SampleLog&) = delete;
  SampleLog& operator=(const SampleLog&) = delete;

  /// Keeps the lines of the steps before `step`, from an earlier part or from the file, and drops all others.
  void go_on_at(int64_t step);
  void write(const std::string& lines);
  /// What was written outlives the process. A DataError where that fails, here and below.
  void flush();
  void commit();

 private:
  std::string part() const { return path_ + ".part"; }
  void open(std::ios::openmode mode);
  [[noreturn]] void fail() const;

  const std::string path_;
  const bool is_kept_;
  std::ofstream stream_;
  bool is_open_ = false;
};

}  // namespace lockstep::tools
