// What an optimizer's rule does with sparse gradients.
#pragma once

#include <string>

namespace lockstep::internal::inline gradient {

/// Where neither `rows` nor `dense` is set, sparse gradients are refused, as LibTorch refuses them.
struct SparseSupport {
  bool rows = false;    // updates the rows that the gradient has, and nothing else
  bool dense = false;   // gives LibTorch's numbers where zeros stand for the rows that the gradient does not have
  std::string refused;  // what takes no sparse gradient: "AdamW", "SGD with weight_decay"
};

}  // namespace lockstep::internal::gradient
