// Notices a process that trains alone where its environment describes several workers.
#pragma once

#include <string>

namespace lockstep::internal::inline comm {

/// Logs a warning, once in a process, where a launcher has described several workers and `strategy`, which was given no
/// World, reaches none of them: each process would train by itself, and nobody would notice. Any thread may call, while
/// no thread calls setenv.
void warn_where_alone_among_workers(const std::string& strategy);

}  // namespace lockstep::internal::comm
