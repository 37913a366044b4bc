// What tests of dealing share: numbers as a data set, and the numbers that each step gave to each replica.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::testing {

using Numbers = std::vector<int64_t>;

inline Dataset numbers(int64_t count) {
  return data::from_tensors(torch::arange(count).to(torch::kFloat).view({count, 1}), torch::arange(count));
}

inline Numbers targets_of(const Batch& part) {
  const torch::Tensor targets = part.target.contiguous();
  return {targets.data_ptr<int64_t>(), targets.data_ptr<int64_t>() + targets.numel()};
}

/// The targets of the rest of an epoch, by step and replica.
using Steps = std::vector<std::vector<Numbers>>;
inline Steps steps_of(const DistributedDataset& data, int64_t epoch) {
  Steps steps;
  for (const auto& batch : data.epoch(epoch)) {
    auto& replicas = steps.emplace_back();
    for (const Batch& part : batch) replicas.push_back(targets_of(part));
  }
  return steps;
}

/// What several workers got, as one worker would have got it.
inline Steps joined(const std::vector<Steps>& workers) {
  Steps all = workers.front();
  for (std::size_t w = 1; w < workers.size(); ++w) {
    EXPECT_EQ(workers[w].size(), all.size()) << "all workers make the same steps";
    for (std::size_t step = 0; step < std::min(all.size(), workers[w].size()); ++step)
      all[step].insert(all[step].end(), workers[w][step].begin(), workers[w][step].end());
  }
  return all;
}

inline Numbers sorted(const Steps& steps) {
  Numbers all;
  for (const auto& step : steps) {
    for (const Numbers& part : step) all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

inline Numbers up_to(int64_t count) {
  Numbers all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace lockstep::testing
