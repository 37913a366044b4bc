// The shapes in autograd's graph. A header of its own beside torch_compat.h, because few sources need autograd's nodes.
#pragma once

#include <cstdint>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace lockstep::internal::inline core {

/// The shape of the tensor that the node's operator made: empty for a number, and where it made none, several, or a
/// nested one.
std::vector<int64_t> shape_made_by(const torch::autograd::Node& node);

}  // namespace lockstep::internal::core
