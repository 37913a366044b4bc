// Where the workers' output goes: the launcher's standard output or error, without ever blocking on it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::tools {

/// Keeps what cannot be written yet. Whoever adds to it asks has_room() first, so that it keeps little.
class Sink {
 public:
  static constexpr std::size_t kEnough = 256 * 1024;

  /// Writes to the file behind `fd`, which stays the caller's. Other processes that use `fd` see no change in it.
  explicit Sink(int fd);

  /// Appends whole lines.
  void add(std::string_view lines) {
    if (!lost_) pending_.append(lines);
  }
  /// Writes what can be written now.
  void flush();

  bool has_room() const { return pending_.size() < kEnough; }
  bool is_empty() const { return pending_.empty(); }
  /// Nobody reads any more, or the disk is full: what is added is dropped.
  bool is_lost() const { return lost_; }
  /// Drops what was not written, and all that follows.
  void give_up();
  /// To wait on for POLLOUT while it is not empty.
  int fd() const { return file_.get(); }

 private:
  internal::FileDescriptor file_;
  bool is_socket_ = false;
  bool never_blocks_ = false;
  bool lost_ = false;
  std::string pending_;
};

/// Whether both descriptors are of one file, terminal, pipe or socket, as after 2>&1.
bool are_same_file(int a, int b);

}  // namespace lockstep::tools
