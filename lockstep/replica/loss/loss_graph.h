// What the graph of a loss says of it: which loss it is, and of which samples it was computed.
#pragma once

#include <cstdint>

namespace torch::autograd {
struct Node;
}

namespace lockstep::internal::inline replica {

/// The operators next to a loss, by names and shapes alone.
struct LossGraph {
  /// A digest of the operators' names: losses of different kinds have different ones, micro-batches of one loss do not.
  uint64_t kind = 0;
  /// The program has multiplied or divided the loss by a number, as by its number of micro-batches: it is a product, or
  /// a sum of products alone.
  bool is_multiplied = false;
  /// Its tensors have fewer rows than the part of the batch, and none has as many: it is of a micro-batch.
  bool is_of_fewer_rows = false;
};

/// Reads the graph behind a loss, whose node is `root`, of a part with so many rows. Calls nothing of it.
LossGraph look_at_graph(torch::autograd::Node& root, int64_t rows);

}  // namespace lockstep::internal::replica
