#include "lockstep/replica/loss/loss_graph.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/node_shape.h"

namespace lockstep::internal::inline replica {

namespace {

using torch::autograd::Node;

constexpr std::size_t kMostNodes = 64;  // so that the look stays short
constexpr int kMostTerms = 8;

bool is_parameter(const Node& node) { return node.next_edges().empty(); }

/// Whether the node only shows or converts a parameter, as the transposed weight of a linear layer does.
bool is_of_parameter_alone(const Node& node) {
  const Node* one = &node;
  for (std::size_t i = 0; i < kMostNodes; ++i) {
    if (is_parameter(*one)) return true;
    if (one->num_outputs() != 1 || !one->next_edge(0).is_valid()) return false;
    one = one->next_edge(0).function.get();
  }
  return false;
}

bool begins_with_one_of(const std::string& name, std::initializer_list<std::string_view> all) {
  return std::any_of(all.begin(), all.end(), [&](std::string_view one) { return name.rfind(one, 0) == 0; });
}

/// Whether a number is a product, or a sum of products alone.
bool is_product(const Node& node, int depth = 0) {
  const std::string name = node.name();
  if (begins_with_one_of(name, {"Div", "Mul"})) return shape_made_by(node).empty();
  if (depth == kMostTerms || !begins_with_one_of(name, {"Add", "Sub", "Neg"})) return false;
  const auto& edges = node.next_edges();
  return std::any_of(edges.begin(), edges.end(), [](const auto& edge) { return edge.is_valid(); }) &&
         std::all_of(edges.begin(), edges.end(),
                     [&](const auto& edge) { return !edge.is_valid() || is_product(*edge.function, depth + 1); });
}

}  // namespace

LossGraph look_at_graph(Node& root, int64_t rows) {
  LossGraph found{.is_multiplied = is_product(root)};
  bool has_all_rows = false;
  int64_t next_to_loss = 0;             // rows of the first tensor that is no number
  std::vector<int64_t> rows_of_others;  // of tensors with further dimensions
  std::vector<Node*> nodes{&root};
  std::unordered_set<const Node*> known{&root};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = *nodes[i];
    const std::string name = node.name();
    found.kind = found.kind * 31 + checksum(name.data(), static_cast<int64_t>(name.size()));
    const std::vector<int64_t> shape = shape_made_by(node);
    if (!shape.empty() && !is_of_parameter_alone(node)) {
      has_all_rows = has_all_rows || shape[0] == rows || (shape.size() > 1 && shape[1] == rows);
      if (next_to_loss == 0) next_to_loss = shape[0];
      if (shape.size() > 1) rows_of_others.push_back(shape[0]);
    }
    for (const auto& edge : node.next_edges()) {
      if (!edge.is_valid() || nodes.size() == kMostNodes || !known.insert(edge.function.get()).second) continue;
      nodes.push_back(edge.function.get());
    }
  }
  const auto is_part = [&](int64_t size) { return size > 0 && size < rows && next_to_loss % size == 0; };
  found.is_of_fewer_rows = !has_all_rows && std::any_of(rows_of_others.begin(), rows_of_others.end(), is_part);
  return found;
}

}  // namespace lockstep::internal::replica
