// Which call of the program a thread is in, for what is said while it waits for other workers.
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace lockstep::internal::inline comm {

/// While it lives, this thread is in that call of the program. The outermost note of a thread counts: what a call makes
/// of calls of its own is nothing that a reader has written.
class CallNote {
 public:
  /// The texts and the place outlive the note.
  explicit CallNote(std::string_view call, std::string_view name = {}, const std::source_location* place = nullptr);
  ~CallNote();
  CallNote(const CallNote&) = delete;
  CallNote& operator=(const CallNote&) = delete;

  /// "make_module of 'net' at train.cpp:12"; empty outside of such calls.
  static std::string of_this_thread();

 private:
  const std::string_view call_;
  const std::string_view name_;
  const std::source_location* const place_;
  const bool is_outermost_;
};

}  // namespace lockstep::internal::comm
