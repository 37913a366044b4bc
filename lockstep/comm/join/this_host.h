// The host that this process runs on: its name, and whether another process is on it.
#pragma once

#include <string>

namespace lockstep::internal::inline comm {

/// A text that two processes have in common exactly where they can share memory by a local socket: it names the running
/// kernel, the network of the process and its user. Any thread.
std::string host_id();

/// As the system calls it; "without a name" where it does not. Any thread.
std::string host_name();

}  // namespace lockstep::internal::comm
