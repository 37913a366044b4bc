#include "lockstep/comm/failure/call_note.h"

#include <fmt/format.h>

namespace lockstep::internal::inline comm {

namespace {
thread_local const CallNote* outermost_note = nullptr;
}  // namespace

CallNote::CallNote(std::string_view call, std::string_view name, const std::source_location* place)
    : call_(call), name_(name), place_(place), is_outermost_(outermost_note == nullptr) {
  if (is_outermost_) outermost_note = this;
}

CallNote::~CallNote() {
  if (is_outermost_) outermost_note = nullptr;
}

std::string CallNote::of_this_thread() {
  const CallNote* const note = outermost_note;
  if (!note) return {};
  std::string text(note->call_);
  if (!note->name_.empty()) text += fmt::format(" of '{}'", note->name_);
  if (note->place_) text += fmt::format(" at {}:{}", note->place_->file_name(), note->place_->line());
  return text;
}

}  // namespace lockstep::internal::comm
