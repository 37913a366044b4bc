// What each server has of a variable that is cut into shards.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

#include "lockstep/server/shard_placement.h"

namespace lockstep::internal::inline server {

/// What one server has of a variable: the shards that lie there, one behind the other, or the whole variable.
struct VariablePart {
  int32_t server = 0;
  std::vector<Shard> shards = {};  // in the order of the axis; none: the whole variable
  bool is_whole() const { return shards.empty(); }
};

/// In the order of servers, each once.
std::vector<VariablePart> parts_of(const std::vector<Shard>& shards);

/// The shape of the part, of a variable of this shape.
std::vector<int64_t> sizes_of(const VariablePart& part, at::IntArrayRef whole);
/// The part's elements, dense or sparse as `whole` is; they may share its memory.
at::Tensor part_of(const at::Tensor& whole, const VariablePart& part);
/// Writes the part's elements into their places. Both are dense.
void put_part(at::Tensor& whole, const at::Tensor& values, const VariablePart& part);
/// A tensor of the variable's shape that has the part's elements, dense or sparse as `values` is, and zeros elsewhere.
at::Tensor spread(const at::Tensor& values, const VariablePart& part, at::IntArrayRef whole);

}  // namespace lockstep::internal::server
