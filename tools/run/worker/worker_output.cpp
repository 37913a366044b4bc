#include "tools/run/worker/worker_output.h"

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

namespace lockstep::tools {

WorkerOutput::WorkerOutput(internal::FileDescriptor pipe, std::string prefix, Sink& sink, LastLines* last)
    : pipe_(std::move(pipe)), prefix_(std::move(prefix)), sink_(&sink), last_(last) {}

bool WorkerOutput::read_some() {
  if (!is_open()) return false;
  if (sink_->is_lost()) {
    pipe_.close();
    return false;
  }
  static std::array<char, 64 * 1024> buffer;
  const ssize_t got = read(fd(), buffer.data(), buffer.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    close();
    return false;
  }
  cutter_.add({buffer.data(), static_cast<std::size_t>(got)}, [this](std::string_view piece) { pass_on(piece); });
  return true;
}

void WorkerOutput::close() {
  if (!is_open()) return;
  cutter_.finish([this](std::string_view piece) { pass_on(piece); });
  pipe_.close();
}

void WorkerOutput::pass_on(std::string_view piece) {
  const bool ends = piece.back() == '\n';
  if (last_ != nullptr) last_->add(piece);
  if (prefix_.empty()) {
    sink_->add(piece);
  } else if (!inside_ || piece.size() > 1 || !ends) {  // not the newline alone of a line that came in pieces
    sink_->add(prefix_);
    sink_->add(piece);
    if (!ends) sink_->add("\n");
  }
  inside_ = !ends;
}

}  // namespace lockstep::tools
