// The values of a trainer's model by name, for what is shown of them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {
class Trainer;
}

namespace lockstep::internal::inline train {

/// The model's on-write variables, sorted by name: the memory in which the run keeps them, which the next step changes.
/// All workers call it, outside of steps.
std::vector<std::pair<std::string, at::Tensor>> model_values(const Trainer& trainer);

/// A value as float32 in the host's memory, copied where it is something else; undefined where it has no
/// floating-point numbers.
at::Tensor as_floats(const at::Tensor& value);

}  // namespace lockstep::internal::train
