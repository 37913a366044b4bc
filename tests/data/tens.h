// What tests of stages share: numbered samples, and the numbers of what came through.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::testing {

using Numbers = std::vector<int64_t>;

/// Sample i has the input [i] and the target 10 * i.
inline Dataset tens(int64_t count) {
  return data::from_tensors(torch::arange(count).to(torch::kFloat).view({count, 1}), torch::arange(count) * 10);
}

inline Numbers inputs_of(const Dataset& dataset) {
  const torch::Tensor all = dataset.read_all().input.to(torch::kLong).contiguous();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

}  // namespace lockstep::testing
