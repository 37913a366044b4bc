#include "lockstep/exchange/host_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/host_memory.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/loops/checksum.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline exchange {

HostGradients::HostGradients(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group,
                             Hosts hosts)
    : variables_(std::move(variables)),
      group_(group),
      hosts_(std::move(hosts)),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
      host_(hosts_.host_of(worker_)),
      partial_sums_(group),
      factors_(variables_, group) {
  if (hosts_.count() > 1) sums_between_hosts_.emplace(hosts_, partial_sums_, group_);
}

void HostGradients::begin_step(const std::vector<GradientsOnWorkers>& all, const BlockShares& shares,
                               const LaneRange& lanes, bool whole) {
  // Inside a host factors are read where they are. Between hosts, partial sums and sums travel.
  WayOfGradients ways = choose_ways(variables_, all, sums_between_hosts_ ? UpdateForm::kAuto : UpdateForm::kFactors,
                                    /*numbers_for_each=*/2);
  factored_ = std::move(ways.as_factors);
  factors_.begin_step(all, factored_);
  factor_elements_ = factors_.elements_by_variable(worker_);
  factor_places_.assign(1, 0);
  for (int64_t w = 0; w < num_workers_; ++w)
    factor_places_.push_back(factor_places_.back() + aligned(bytes_of_factors(w)));
  // All blocks are packed: the owner of a slice is not the worker that updates its blocks.
  whole = whole || sums_between_hosts_;
  const bool is_new_layout = !row_.takes_exactly(ways.as_sums) || whole != whole_;
  if (is_new_layout) lay_out(ways.as_sums, shares, lanes, whole);
  make_room(is_new_layout);
  for (int64_t w = 0; w < num_workers_; ++w) {
    const int64_t elements = factors_.elements_of(w);
    if (w != worker_ && elements > 0) factors_.unpack(w, at::from_blob(factors_of(w), {elements}, at::kFloat));
  }
}

void HostGradients::lay_out(std::span<const char> summed, const BlockShares& shares, const LaneRange& lanes,
                            bool whole) {
  row_ = RowLayout();  // where memory is short, the next step begins again
  RowLayout row = row_of_blocks(variables_, summed);
  pieces_.clear();
  for (const RowPiece& piece : row.pieces()) {
    const int64_t block = piece.offset * size_of(piece.numbers) / kBlockBytes;
    if (whole || !shares.has(lanes, piece.variable, block)) pieces_.push_back(piece);
  }
  if (sums_between_hosts_) sums_between_hosts_->lay_out(row);
  streams_ = static_cast<std::size_t>(row.bytes()) > kStreamedBytes;
  whole_ = whole;
  row_ = std::move(row);
}

int64_t HostGradients::bytes_of_step() const {
  int64_t most = 0;
  for (int64_t h = 0; h < hosts_.count(); ++h) {
    int64_t sums = sums_between_hosts_ ? 1 : 0;
    for (const int64_t w : hosts_.workers_of(h)) sums += partial_sums_.count(w);
    most = std::max(most, sums * row_.bytes());
  }
  return most + factor_places_.back();
}

int64_t HostGradients::bytes_of_factors(int64_t worker) const {
  return factors_.elements_of(worker) * static_cast<int64_t>(sizeof(float));
}

void HostGradients::make_room(bool is_new_layout) {
  // Every host allocates as much as the host that needs most. So all workers decide alike whether memory must grow.
  const int64_t bytes = bytes_of_step();
  const bool grows = bytes > room_;
  if (!grows && !(sums_between_hosts_ && is_new_layout)) return;
  // All workers come here in the same step, and where one of them gets no memory, none has it.
  if (grows) {
    room_ = 0;
    memory_.reset();
  }
  std::shared_ptr<std::byte> memory;
  // A worker that had made another call of the memory would get another piece of it.
  HostMemory& of_host = *group_.rounds().host_memory();
  const uint64_t place = Digest().with(of_host.calls()).with(bytes).value();
  const auto get = [&](Proposal&) {
    if (grows) memory = of_host.allocate(static_cast<std::size_t>(bytes));
    if (sums_between_hosts_) sums_between_hosts_->make_room();
  };
  try {
    agree_on_call(group_.rounds(), {.call = "memory of gradients", .signature = place, .step = group_.step()}, get);
  } catch (...) {
    row_ = RowLayout();
    throw;
  }
  if (grows) {
    memory_ = std::move(memory);
    room_ = bytes;
  }
  if (sums_between_hosts_) sums_between_hosts_->set_memory(memory_between_hosts());
}

SumsInMemory HostGradients::sums_of(int64_t worker) const {
  int64_t before = 0;
  for (const int64_t w : hosts_.workers_of(host_)) before += w < worker ? partial_sums_.count(w) : 0;
  return {memory_.get() + before * row_.bytes(), 0, row_.bytes()};
}

float* HostGradients::factors_of(int64_t worker) const {
  std::byte* const first = sums() + (sums_between_hosts_ ? row_.bytes() : 0);
  return reinterpret_cast<float*>(first + factor_places_[static_cast<std::size_t>(worker)]);
}

SumsBetweenHosts::Memory HostGradients::memory_between_hosts() const {
  SumsBetweenHosts::Memory memory{.partial_sums = {}, .sums = sums()};
  for (const int64_t w : hosts_.workers_of(host_))
    memory.partial_sums.push_back({partial_sums_.subtrees(w), sums_of(w)});
  return memory;
}

void HostGradients::send_factors() {
  if (!factors_.has_any()) return;
  const auto place_of = [&](int64_t w) {
    return std::span(reinterpret_cast<std::byte*>(factors_of(w)), static_cast<std::size_t>(bytes_of_factors(w)));
  };
  sums_between_hosts_->send_to_other_hosts(place_of(worker_), place_of);
}

Travelled HostGradients::travelled(std::size_t i) const {
  using enum Travelled::As;
  if (!sums_between_hosts_) return {};
  if (i < factored_.size() && factored_[i]) {
    const int64_t bytes = factor_elements_[i] * static_cast<int64_t>(sizeof(float));
    return {.as = kFactors, .bytes = bytes * (hosts_.count() - 1)};
  }
  if (!row_.takes(i)) return {};
  return {.as = kSums, .bytes = sums_between_hosts_->bytes_sent(row_.place(i), row_.end(i))};
}

void HostGradients::pack(const GradientTable& gradients, int lane, int num_lanes) {
  if (lane == 0 && factors_.has_any()) factors_.pack(gradients, factors_of(worker_));
  partial_sums_.restart(lane);
  for (const RowPiece& piece : share_of<RowPiece>(pieces_, lane, num_lanes))
    partial_sums_.pack(gradients, lane, piece, sums_of(worker_), streams_);
  if (streams_) end_stream_copies();
}

void HostGradients::set_leaves(GradientTable& gradients) const {
  if (sums_between_hosts_) {
    // A sum stands as the leaf of the first replica.
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (row_.takes(i)) gradients.set_leaf(i, 0, Leaf(sums() + row_.place(i)));
    }
    return factors_.set_leaves(gradients);
  }
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (row_.takes(i)) partial_sums_.set_leaves(gradients, i, row_.place(i), [&](int64_t w) { return sums_of(w); });
  }
  factors_.set_leaves(gradients);
}

}  // namespace lockstep::internal::exchange
