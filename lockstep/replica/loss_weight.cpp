#include "lockstep/replica/loss_weight.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::internal {

namespace {

struct ZeroThatKeepsGraph : torch::autograd::Function<ZeroThatKeepsGraph> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& loss) { return at::zeros_like(loss); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    return {at::Tensor()};  // undefined, not zero: 0 times what an empty batch left in the graph may be NaN
  }
};

}  // namespace

at::Tensor zero_that_keeps_graph(const at::Tensor& loss) { return ZeroThatKeepsGraph::apply(loss); }

}  // namespace lockstep::internal
