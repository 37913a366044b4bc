// How the launcher tells the evaluator that training has ended, so that it reads the last checkpoint and ends too.
#pragma once

#include <string>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::tools {

/// A pipe whose reading end the evaluator inherits, each time it is started. It has ended once give() was called, or
/// the launcher is gone.
class EndNotice {
 public:
  /// Throws a ClusterError (LS-LAUNCH) where the system gives no pipe.
  EndNotice();

  /// What the evaluator inherits, and how it finds it: "7:4711", the number and the inode.
  int receiver() const { return receiver_.get(); }
  const std::string& address() const { return address_; }
  void give() { sender_.close(); }

 private:
  internal::FileDescriptor receiver_;
  internal::FileDescriptor sender_;
  std::string address_;
};

}  // namespace lockstep::tools
