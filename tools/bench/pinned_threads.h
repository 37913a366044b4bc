// Threads on separate cores that start and end together, for measuring.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tools/bench/timing.h"

namespace lockstep::tools {

/// Times `work(thread, calls)`, called on each of `threads` threads at once, each pinned to the next core of the
/// process and with one intra-op thread; from the moment that all are ready to the moment that all are done.
Timing measure_on_threads(int threads, const std::function<void(int thread, int64_t calls)>& work,
                          const TimingOptions& options);

}  // namespace lockstep::tools
