// How workers tell the launcher that they were asked for a stop by somebody else.
#pragma once

#include <string>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::tools {

/// A socket that the workers of an attempt inherit. A worker sends a byte when it is asked for a stop
/// (core/process/stop_request.h), so that its exit code 75, and that of the workers that stop with it, is no failure:
/// by the code alone nobody can tell it from that of a worker that lost another one.
class StopNotices {
 public:
  /// Throws a ClusterError (LS-LAUNCH) where the system gives no sockets.
  StopNotices();

  /// Of the launcher; readable where something has come.
  int fd() const { return receiver_.get(); }
  /// What the workers inherit, and how they find it: "7:4711", the number and the inode.
  int sender() const { return sender_.get(); }
  const std::string& address() const { return address_; }
  /// Whether a worker has said until now that it was asked.
  bool has_come();
  /// The worker that was asked has ended, alone: what comes later is of others.
  void forget() { has_come_ = false; }

 private:
  internal::FileDescriptor receiver_;
  internal::FileDescriptor sender_;
  std::string address_;
  bool has_come_ = false;
};

}  // namespace lockstep::tools
