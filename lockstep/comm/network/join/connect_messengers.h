// How the messengers of all workers find each other, by calls over the connections that the workers have already.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/messenger.h"
#include "lockstep/core/function_ref.h"

namespace lockstep::internal::inline comm {

/// One call of all workers: each does `part`, and gets what all parts gave, by worker. Why a worker could not; empty
/// where all could.
using OnAllWorkers = FunctionRef<std::string(FunctionRef<std::string()> part, std::vector<std::string>& results)>;

/// All workers call it. Why their messengers are not connected, the same on all of them; empty where they are.
/// `messenger` is null where this worker has none.
std::string connect_messengers(Messenger* messenger, int64_t num_workers, OnAllWorkers on_all);

}  // namespace lockstep::internal::comm
