// The log's lines about variables that have no gradient in a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::internal::inline gradient {

/// Variables that require a gradient and have none, in the optimizer's order.
struct AbsentGradients {
  struct OnSome {
    std::string name;
    std::vector<int64_t> replicas;  // that have none, where others have one
  };
  std::vector<OnSome> on_some;
  std::vector<std::string> on_all;
};

/// At most one line for each of the two: how many there are, and the first few by name.
std::vector<std::string> lines_of(const AbsentGradients& absent, int64_t step);

/// Logs these lines.
void log_absent_gradients(const AbsentGradients& absent, int64_t step);

}  // namespace lockstep::internal::gradient
