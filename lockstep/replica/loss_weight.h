// The loss of a replica that has nothing to say.
#pragma once

#include <ATen/core/TensorBody.h>

namespace lockstep::internal {

/// An exact 0 in place of `loss`, which may be NaN (the mean of nothing), with `loss`'s graph behind it: a backward
/// from it visits the graph, so that meeting points in it are kept, and brings no gradient to anything.
at::Tensor zero_that_keeps_graph(const at::Tensor& loss);

}  // namespace lockstep::internal
