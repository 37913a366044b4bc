#include "lockstep/server/local/variable_parts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace lockstep::internal::inline server {

namespace {

/// How many elements of the first axis the part has.
int64_t rows_of(const VariablePart& part) {
  int64_t rows = 0;
  for (const Shard& one : part.shards) rows += one.count;
  return rows;
}

/// Calls visit(shard, where it begins in the part).
template <class Visit>
void for_each_shard(const VariablePart& part, const Visit& visit) {
  int64_t first = 0;
  for (const Shard& one : part.shards) {
    visit(one, first);
    first += one.count;
  }
}

/// A sparse tensor of this shape: the elements `kept` of a coalesced one, at other places of the first axis.
at::Tensor with_first_axis(const at::Tensor& sparse, const at::Tensor& kept, const at::Tensor& first,
                           at::IntArrayRef sizes) {
  const at::Tensor indices = sparse.indices().index_select(1, kept);
  indices.select(0, 0).copy_(first);
  return at::sparse_coo_tensor(indices, sparse.values().index_select(0, kept), sizes).coalesce();
}

}  // namespace

std::vector<VariablePart> parts_of(const std::vector<Shard>& shards) {
  std::vector<VariablePart> parts;
  for (const Shard& one : shards) {
    const auto server = static_cast<int32_t>(one.server);
    auto found = std::ranges::lower_bound(parts, server, {}, &VariablePart::server);
    if (found == parts.end() || found->server != server) found = parts.insert(found, {.server = server});
    found->shards.push_back(one);
  }
  if (parts.size() == 1) parts.front().shards.clear();
  return parts;
}

std::vector<int64_t> sizes_of(const VariablePart& part, at::IntArrayRef whole) {
  std::vector<int64_t> sizes = whole.vec();
  if (!part.is_whole()) sizes.front() = rows_of(part);
  return sizes;
}

at::Tensor part_of(const at::Tensor& whole, const VariablePart& part) {
  if (part.is_whole()) return whole;
  if (whole.is_sparse()) {
    const at::Tensor sparse = whole.coalesce();
    const at::Tensor row = sparse.indices().select(0, 0);
    at::Tensor place = at::full_like(row, -1);
    for_each_shard(part, [&](const Shard& one, int64_t first) {
      const at::Tensor is_here = row.ge(one.first).logical_and(row.lt(one.first + one.count));
      place = at::where(is_here, row - one.first + first, place);
    });
    const at::Tensor kept = place.ge(0).nonzero().select(1, 0);
    return with_first_axis(sparse, kept, place.index_select(0, kept), sizes_of(part, whole.sizes()));
  }
  if (part.shards.size() == 1) return whole.narrow(0, part.shards.front().first, part.shards.front().count);
  std::vector<at::Tensor> all;
  for (const Shard& one : part.shards) all.push_back(whole.narrow(0, one.first, one.count));
  return at::cat(all);
}

void put_part(at::Tensor& whole, const at::Tensor& values, const VariablePart& part) {
  const at::NoGradGuard no_grad;
  if (part.is_whole()) {
    whole.copy_(values);
    return;
  }
  for_each_shard(part, [&](const Shard& one, int64_t first) {
    whole.narrow(0, one.first, one.count).copy_(values.narrow(0, first, one.count));
  });
}

at::Tensor spread(const at::Tensor& values, const VariablePart& part, at::IntArrayRef whole) {
  if (part.is_whole()) return values;
  if (values.is_sparse()) {
    const at::Tensor sparse = values.coalesce();
    const at::Tensor row = sparse.indices().select(0, 0);
    at::Tensor place = row.clone();
    for_each_shard(part, [&](const Shard& one, int64_t first) {
      const at::Tensor is_here = row.ge(first).logical_and(row.lt(first + one.count));
      place = at::where(is_here, row - first + one.first, place);
    });
    return with_first_axis(sparse, at::arange(row.size(0), row.options()), place, whole);
  }
  at::Tensor all = at::zeros(whole, values.options());
  put_part(all, values, part);
  return all;
}

}  // namespace lockstep::internal::server
