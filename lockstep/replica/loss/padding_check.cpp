#include "lockstep/replica/loss/padding_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::internal::inline replica {

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

template <class AnyNode>
bool has_hooks(AnyNode& node) {
  bool any = !node.pre_hooks().empty() || !node.post_hooks().empty();
  if constexpr (requires { node.tensor_pre_hooks(); }) any = any || !node.tensor_pre_hooks().empty();
  if constexpr (requires { node.retains_grad_hooks(); }) any = any || !node.retains_grad_hooks().empty();
  return any;
}

/// Whether the node is an operator of LibTorch that may be called a second time: it has no side effect, as collectives
/// and functions of the program may have, and is no product that takes long.
bool may_be_called(Node& node) {
  static constexpr std::array<std::string_view, 7> kLong{"Addmm", "Mm", "Bmm", "Baddbmm", "Conv", "Mkl", "Embedding"};
  const std::string name = node.name();
  if (name.find(':') != std::string::npos || has_hooks(node)) return false;
  return std::none_of(kLong.begin(), kLong.end(), [&](std::string_view one) { return name.rfind(one, 0) == 0; });
}

/// The last part of a loss's graph, back to products and functions of the program, and the tensors of so many rows in
/// it.
class LastOperators {
 public:
  LastOperators(const Edge& root, int64_t rows) : rows_(rows) {
    visit(root);
    for (std::size_t next = 0; next < nodes_.size(); ++next) {
      for (const Edge& edge : nodes_[next]->next_edges()) visit(edge);
    }
  }

  /// The gradients with respect to these tensors.
  std::vector<at::Tensor> gradients(const Edge& root, const at::Tensor& of_root) {
    give(root, of_root);
    std::deque<Node*> ready;
    if (is_inside(root)) ready.push_back(root.function.get());
    while (!ready.empty()) {
      Node* const node = ready.front();
      ready.pop_front();
      variable_list& given = given_[node];
      given.resize(node->num_inputs());  // undefined where no gradient came
      const variable_list made = (*node)(std::move(given));
      const auto& edges = node->next_edges();
      for (std::size_t i = 0; i < edges.size(); ++i) {
        if (i < made.size() && edges[i].is_valid()) give(edges[i], made[i]);
        if (is_inside(edges[i]) && --waits_for_[edges[i].function.get()] == 0) ready.push_back(edges[i].function.get());
      }
    }
    std::vector<at::Tensor> all;
    for (const auto& [place, gradient] : with_rows_) all.push_back(gradient);
    return all;
  }

 private:
  static constexpr std::size_t kMost = 64;  // nodes, so that the look at a loss stays short

  bool is_inside(const Edge& edge) const { return edge.is_valid() && waits_for_.count(edge.function.get()) > 0; }

  void visit(const Edge& edge) {
    if (!edge.is_valid()) return;
    if (edge.function->next_edges().empty()) return;  // a parameter
    const auto known = waits_for_.find(edge.function.get());
    if (known != waits_for_.end()) {
      ++known->second;
    } else if (nodes_.size() < kMost && may_be_called(*edge.function)) {
      waits_for_[edge.function.get()] = 1;
      nodes_.push_back(edge.function.get());
    }
  }

  void give(const Edge& edge, at::Tensor gradient) {
    if (!gradient.defined()) return;
    const auto& metadata = edge.function->input_metadata(edge.input_nr);
    if (!metadata.is_same_shape(gradient)) gradient = metadata.reduce_grad(gradient);
    const auto add = [&](at::Tensor& sum) { sum = sum.defined() ? sum + gradient : gradient; };
    const bool has_rows = !gradient.is_nested() && gradient.dim() > 0 && gradient.size(0) == rows_;
    const bool is_parameter = edge.function->next_edges().empty();
    if (has_rows && !is_parameter && !has_hooks(*edge.function)) add(with_rows_[{edge.function.get(), edge.input_nr}]);
    if (!is_inside(edge)) return;
    variable_list& inputs = given_[edge.function.get()];
    inputs.resize(edge.function->num_inputs());
    add(inputs[edge.input_nr]);
  }

  const int64_t rows_;
  std::vector<Node*> nodes_;
  std::map<const Node*, int64_t> waits_for_;  // edges inside that lead to a node
  std::map<const Node*, variable_list> given_;
  std::map<std::pair<const Node*, uint32_t>, at::Tensor> with_rows_;  // gradients
};

bool is_anywhere_else_than_zero(const at::Tensor& tensor) { return tensor.ne(0).any().item<bool>(); }

}  // namespace

bool depends_on_padding(const at::Tensor& loss, int64_t rows, int64_t samples) try {
  if (!loss.requires_grad() || !loss.grad_fn() || samples <= 0 || samples >= rows) return false;
  const at::AutoGradMode no_graph(false);
  const Edge root = torch::autograd::impl::gradient_edge(loss);
  LastOperators last(root, rows);
  bool depends = false;
  for (const at::Tensor& gradient : last.gradients(root, at::ones_like(loss))) {
    if (!gradient.defined() || gradient.layout() != at::kStrided) continue;
    if (is_anywhere_else_than_zero(gradient.narrow(0, samples, rows - samples))) {
      depends = true;
    } else if (is_anywhere_else_than_zero(gradient.narrow(0, 0, samples))) {
      return false;  // the padding was left out behind it; what else is in the loss may be no losses of rows
    }
  }
  return depends;
} catch (const std::exception&) {
  return false;  // such as of a graph whose tensors were changed: the program's own backward says that better
}

}  // namespace lockstep::internal::replica
