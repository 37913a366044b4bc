// How a test says that one worker's program differs from the others'.
#pragma once

#include <functional>
#include <initializer_list>
#include <string_view>

#include "tests/support/workers.h"

namespace lockstep::testing {

/// What a worker does.
using WorkerProgram = std::function<void(Strategy&)>;

inline bool is_last(const Strategy& strategy) { return strategy.worker_index() == strategy.num_workers() - 1; }

/// A UsageError on each of three workers.
inline void expect_refused(const WorkerProgram& body, std::string_view code,
                           std::initializer_list<std::string_view> values) {
  expect_error_on_all<UsageError>({3, 3, 1}, body, code, values);
}

/// A step that fails with a UsageError on each of two workers.
inline void expect_step_refused(const WorkerProgram& body, std::string_view code,
                                std::initializer_list<std::string_view> values) {
  expect_step_error_on_all<UsageError>({2, 4, 1}, body, code, values);
}

}  // namespace lockstep::testing
