// Whether all workers have the same list of texts, and where it differs on whom.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/agreement.h"

namespace lockstep::internal::inline comm {

/// Throws a UsageError (LS-WORKER-ORDER), the same on all workers, unless each has given the same texts in the same
/// order. It says in the first text that differs what each side has, and who is on it. `subject` begins the message,
/// "make_module of 'net'", `thing` is what one text describes, "variable". Workers send digests, and the text only
/// where it differs. A call of all workers, as `call` says.
void require_equal_texts(Rounds& rounds, const Proposal& call, std::span<const std::string> texts,
                         const std::string& subject, const std::string& thing, const std::string& remedy);

/// "worker 3", "workers 0 to 7", "workers 0, 2 and 5", "workers 0, 2, 3, 5 and 60 more"; `workers` is not empty, and
/// ascending.
std::string text_of_workers(std::span<const int64_t> workers);

/// What each side says and who is on it: "'a' on workers 0 to 2, and 'b' on worker 3". Of many sides the first four.
std::string text_of_sides(std::span<const std::string> by_worker, const std::string& preposition);

}  // namespace lockstep::internal::comm
