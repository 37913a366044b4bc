#include "lockstep/reduce/across_workers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/addition_order.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_tensors.h"

namespace lockstep::internal::inline reduce {

namespace {

// A record of shapes begins with kShapes, which no proposal begins with. kAbsent stands for an undefined tensor.
constexpr int64_t kShapes = -2;
constexpr int64_t kAbsent = -1;

/// Dtypes and shapes as words, with which the other workers make memory before the tensors come.
std::string shapes_of(std::span<const at::Tensor> tensors) {
  std::string bytes;
  ByteWriter to(bytes);
  to.put(kShapes);
  for (const at::Tensor& tensor : tensors) {
    to.put(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : kAbsent);
    if (tensor.defined()) to.put_list(tensor.sizes());
  }
  return bytes;
}

std::vector<at::Tensor> empty_of_shapes(const std::string& bytes, int64_t worker, const Rounds& rounds) {
  int64_t mark = 0;
  if (!ByteReader(bytes).get(mark) || mark != kShapes) {
    // That worker makes another call or has failed: its record is a proposal that says which.
    std::vector<Proposal> said(static_cast<std::size_t>(rounds.num_workers()), {.call = "a reduction"});
    said[static_cast<std::size_t>(worker)] = decode(bytes, worker);
    require_agreement(said, rounds.worker_index());
  }
  MessageReader reader(bytes, worker, "dtypes and shapes of tensors");
  reader.expect(reader.get<int64_t>() == kShapes);
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> sizes;
  while (!reader.at_end()) {
    const auto type = reader.get<int64_t>();
    if (type == kAbsent) {
      tensors.emplace_back();
      continue;
    }
    reader.expect(type >= 0 && type < static_cast<int64_t>(at::ScalarType::NumOptions));
    sizes.resize(reader.get_count(sizeof(int64_t)));
    for (int64_t& size : sizes) {
      size = reader.get<int64_t>();
      reader.expect(size >= 0);
    }
    tensors.push_back(at::empty(sizes, static_cast<at::ScalarType>(type)));
  }
  return tensors;
}

std::size_t size_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::size_t>(tensor.nbytes()) : 0;
}

std::size_t bytes_of(std::span<const at::Tensor> tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += size_of(tensor);
  return bytes;
}

/// The bytes of all tensors, one tensor after another.
std::vector<std::byte> packed(std::span<const at::Tensor> tensors) {
  std::vector<std::byte> bytes(bytes_of(tensors));
  std::size_t done = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) std::ranges::copy(host_bytes(tensor), bytes.begin() + static_cast<std::ptrdiff_t>(done));
    done += size_of(tensor);
  }
  return bytes;
}

void unpack(std::span<const std::byte> bytes, std::span<at::Tensor> tensors) {
  std::size_t done = 0;
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) std::ranges::copy(bytes.subspan(done, size_of(tensor)), host_bytes_to_write(tensor).begin());
    done += size_of(tensor);
  }
}

/// Every worker's tensors; a worker without tensors sends no bytes.
std::vector<std::vector<at::Tensor>> gather_dense(Rounds& rounds, const std::vector<at::Tensor>& mine) {
  const auto workers = static_cast<std::size_t>(rounds.num_workers());
  const auto here = static_cast<std::size_t>(rounds.worker_index());
  auto all = rounds.agree(shapes_of(mine), [&](const std::vector<std::string>& shapes) {
    std::vector<std::vector<at::Tensor>> empty(workers);
    for (std::size_t w = 0; w < workers; ++w) {
      if (w != here) empty[w] = empty_of_shapes(shapes[w], static_cast<int64_t>(w), rounds);
    }
    return empty;
  });
  std::vector<std::vector<std::byte>> received;
  rounds.or_end_run([&] {
    received.resize(workers);
    const std::vector<std::byte> sent = packed(mine);
    std::vector<std::span<const std::byte>> to(workers, sent);
    std::vector<std::span<std::byte>> from(workers);
    for (std::size_t w = 0; w < workers; ++w) {
      if (w == here) continue;
      received[w].resize(bytes_of(all[w]));
      from[w] = received[w];
    }
    rounds.exchange(to, from);
  });
  for (std::size_t w = 0; w < workers; ++w) {
    if (w != here) unpack(received[w], all[w]);
  }
  all[here] = mine;
  return all;
}

}  // namespace

std::vector<std::vector<at::Tensor>> gather_across(Rounds& rounds, std::span<const at::Tensor> mine) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> dense;
  for (const at::Tensor& one : mine) dense.push_back(one.defined() ? plain_and_contiguous(one) : one);
  return gather_dense(rounds, dense);
}

at::Tensor broadcast_across(Rounds& rounds, int64_t worker, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> mine;
  if (rounds.worker_index() == worker) mine.push_back(plain_and_contiguous(value));
  const auto all = gather_dense(rounds, mine);
  const std::vector<at::Tensor>& given = all[static_cast<std::size_t>(worker)];
  if (given.size() != 1) {
    throw PeerError("LS-PEER-MESSAGE", fmt::format("worker {} sent {} tensors where one was due", worker, given.size()),
                    "start all workers with the same version of Lockstep",
                    {.worker = worker, .noticed = PeerError::Noticed::kMessage});
  }
  return rounds.worker_index() == worker ? given.front().clone() : given.front();
}

at::Tensor reduce_across(Rounds& rounds, const Reducer& reducer, Reduction reduction, int64_t replicas, Block local,
                         std::span<const at::Tensor> mine) {
  const at::NoGradGuard no_grad;
  if (!reducer.in_tree_order()) {
    std::vector<at::Tensor> values;
    for (const auto& of_worker : gather_across(rounds, mine))
      values.insert(values.end(), of_worker.begin(), of_worker.end());
    check_alike("a reduction", values);
    return reduce_by(reducer, reduction, values);
  }
  // A partial sum for each maximal subtree of this worker's block; it stands as the value of the subtree's first
  // replica.
  std::vector<at::Tensor> partial;
  std::optional<at::ScalarType> type;
  for (const Subtree& subtree : maximal_subtrees(replicas, local.first, local.count)) {
    std::vector<at::Tensor> summands;
    for (int64_t r = subtree.first; r < subtree.first + subtree.count; ++r) {
      const at::Tensor& value = mine[static_cast<std::size_t>(r - local.first)];
      summands.push_back(value.defined() ? summand_of(reduction, value) : value);
      if (value.defined()) type = value.scalar_type();
    }
    partial.push_back(fold_summands(reduction, summands));
  }
  const auto all = gather_across(rounds, partial);
  std::vector<at::Tensor> summands(static_cast<std::size_t>(replicas));
  std::vector<at::Tensor> present;
  std::vector<int64_t> ids;  // of `present`: the first replica of each
  for (int64_t w = 0; w < rounds.num_workers(); ++w) {
    const Block block = block_of(replicas, rounds.num_workers(), w);
    const auto subtrees = maximal_subtrees(replicas, block.first, block.count);
    const std::vector<at::Tensor>& given = all[static_cast<std::size_t>(w)];
    for (std::size_t i = 0; i < subtrees.size() && i < given.size(); ++i) {
      summands[static_cast<std::size_t>(subtrees[i].first)] = given[i];
      if (!given[i].defined()) continue;
      present.push_back(given[i]);
      ids.push_back(subtrees[i].first);
    }
  }
  if (present.empty()) return {};
  check_alike("a reduction", present, /*but_axes=*/{}, ids);
  const at::Tensor total = fold_summands(reduction, summands);
  return result_of(reduction, total, replicas, type.value_or(total.scalar_type()));
}

}  // namespace lockstep::internal::reduce
