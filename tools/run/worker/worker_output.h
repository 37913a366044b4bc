// One output stream of one worker, on its way from the worker's pipe to the launcher's own output.
#pragma once

#include <string>

#include "lockstep/core/process/file_descriptor.h"
#include "tools/run/worker/lines.h"
#include "tools/run/worker/sink.h"

namespace lockstep::tools {

class WorkerOutput {
 public:
  /// Reads from `pipe`, a non-blocking one, and writes to `sink`, which must live longer. Each line begins with
  /// `prefix`. With a prefix, a last line without a newline and each piece of a long line get one; without a prefix all
  /// bytes are passed on as they are. `last`, where it is not null, gets a copy of each line.
  WorkerOutput(internal::FileDescriptor pipe, std::string prefix, Sink& sink, LastLines* last);

  /// Whether there may be more to read.
  bool is_open() const { return pipe_.is_open(); }
  int fd() const { return pipe_.get(); }
  /// Whether what was read can be passed on.
  bool has_room() const { return sink_->has_room(); }
  /// Reads once, as much as there is but at most 64 KiB; false where there was nothing. At the end of the stream, and
  /// where nobody reads the sink any more, it closes the pipe: the worker then sees what it would see without a
  /// launcher, SIGPIPE.
  bool read_some();
  /// Passes on what is left of the last line, and closes the pipe.
  void close();

 private:
  void pass_on(std::string_view piece);

  internal::FileDescriptor pipe_;
  std::string prefix_;
  Sink* sink_;
  LastLines* last_;
  LineCutter cutter_;
  bool inside_ = false;  // of a line whose last piece had no newline
};

}  // namespace lockstep::tools
