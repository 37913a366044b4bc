// A file of events in the folder of one of TensorBoard's runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/train/tensor_board/event_message.h"

namespace lockstep::internal::inline train {

/// Seconds since 1970.
double seconds_now();

/// Writes a new file, whose name sorts behind those of all event files in the folder: TensorBoard reads them in the
/// order of their names. Records are kept until flush(), or until an add() comes a second or more after the last write;
/// they are written by one call, so that a reader sees whole ones. Files that are there already are neither changed nor
/// removed: where this one has a step again, TensorBoard drops the older points. One thread at a time.
///
/// Every member throws a DataError (LS-FILE) that names the path where the file system refuses; what had not been
/// written is lost then, and nothing more is written.
class EventFile {
 public:
  /// Makes the folder, and the file with its first two records. `first_step` is the first step that may come: older
  /// files' points from there on no longer count.
  EventFile(const std::filesystem::path& folder, int64_t first_step, std::function<double()> now = seconds_now);
  /// Flushes as far as it can.
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Adds an event with the values that `fill(SummaryMessage&)` gives it; none where there are no values.
  template <class Fill>
  void add(int64_t step, const Fill& fill) {
    SummaryMessage summary(known_tags_);
    fill(summary);
    if (!summary.empty()) append(summary.event(step, now_()));
  }
  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& message);

  const std::function<double()> now_;
  std::filesystem::path path_;
  FileDescriptor file_;
  std::set<std::string> known_tags_;
  std::string waiting_;
  double written_at_ = 0;
};

}  // namespace lockstep::internal::train
