#include "lockstep/exchange/sums_between_hosts.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/blocks.h"
#include "lockstep/reduce/loops/tree_sum.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline exchange {

SumsBetweenHosts::SumsBetweenHosts(const Hosts& hosts, const PartialSums& partial_sums, const ReplicaGroup& group)
    : hosts_(hosts),
      partial_sums_(partial_sums),
      group_(group),
      worker_(group.rounds().worker_index()),
      host_(hosts.host_of(worker_)) {
  for (int64_t h = 0; h < hosts.count(); ++h) {
    subtrees_.push_back(hosts.subtrees(h, group.num_replicas()));
    partners_.push_back(h == host_ ? -1 : hosts.partner(h, worker_));
  }
  for (int64_t w = 0; w < hosts.num_workers(); ++w) {
    if (hosts.host_of(w) != host_ && hosts.partner(host_, w) == worker_) owners_.push_back(w);
  }
}

void SumsBetweenHosts::lay_out(std::vector<RowPiece> pieces, int64_t bytes) {
  pieces_ = std::move(pieces);
  const auto place_of = [&](std::size_t piece) { return piece == pieces_.size() ? bytes : pieces_[piece].place; };
  const int64_t workers = hosts_.num_workers();
  slices_.clear();
  to_combine_.clear();
  outgoing_places_.assign(static_cast<std::size_t>(workers), 0);
  incoming_places_.assign(static_cast<std::size_t>(hosts_.count()), 0);
  outgoing_bytes_ = 0;
  incoming_bytes_ = 0;
  std::size_t first = 0;
  for (int64_t w = 0; w < workers; ++w) {
    // Worker w's slice ends where the first piece begins that lies in the share of worker w + 1.
    std::size_t end = first;
    while (end < pieces_.size() && (w + 1 == workers || pieces_[end].place < bytes / workers * (w + 1))) ++end;
    slices_.push_back({first, end, place_of(first), place_of(end) - place_of(first)});
    first = end;
  }
  for (const int64_t w : owners_) {
    for (std::size_t p = slice(w).first; p < slice(w).end; ++p) to_combine_.push_back({p, w});
    outgoing_places_[static_cast<std::size_t>(w)] = outgoing_bytes_;
    outgoing_bytes_ += slice(w).bytes * static_cast<int64_t>(subtrees(host_).size());
  }
  for (int64_t h = 0; h < hosts_.count(); ++h) {
    if (h == host_) continue;
    incoming_places_[static_cast<std::size_t>(h)] = incoming_bytes_;
    incoming_bytes_ += slice(worker_).bytes * static_cast<int64_t>(subtrees(h).size());
  }
}

void SumsBetweenHosts::make_room() {
  // Zeroed, because the gaps between variables are sent too, and must not be uninitialised.
  const auto grow = [](at::Tensor& memory, int64_t bytes) {
    if (!memory.defined() || memory.numel() < bytes) memory = at::zeros({bytes}, at::kByte);
  };
  grow(outgoing_, outgoing_bytes_);
  grow(incoming_, incoming_bytes_);
}

std::byte* SumsBetweenHosts::outgoing(int64_t owner, std::size_t subtree) const {
  return static_cast<std::byte*>(outgoing_.data_ptr()) + outgoing_places_[static_cast<std::size_t>(owner)] +
         slice(owner).bytes * static_cast<int64_t>(subtree);
}

std::byte* SumsBetweenHosts::incoming(int64_t host, std::size_t subtree) const {
  return static_cast<std::byte*>(incoming_.data_ptr()) + incoming_places_[static_cast<std::size_t>(host)] +
         slice(worker_).bytes * static_cast<int64_t>(subtree);
}

std::span<std::byte> SumsBetweenHosts::all_outgoing(int64_t owner) const {
  return {outgoing(owner, 0), static_cast<std::size_t>(slice(owner).bytes) * subtrees(host_).size()};
}

std::span<std::byte> SumsBetweenHosts::all_incoming(int64_t host) const {
  return {incoming(host, 0), static_cast<std::size_t>(slice(worker_).bytes) * subtrees(host).size()};
}

std::span<std::byte> SumsBetweenHosts::sums_of(int64_t owner) const {
  return {memory_.sums + slice(owner).begin, static_cast<std::size_t>(slice(owner).bytes)};
}

void SumsBetweenHosts::combine(int lane, int num_lanes) {
  const Block own = block_of(static_cast<int64_t>(to_combine_.size()), num_lanes, lane);
  for (int64_t c = own.first; c < own.end(); ++c) {
    const PieceToCombine& one = to_combine_[static_cast<std::size_t>(c)];
    if (pieces_[one.piece].is_double) {
      combine_piece<double>(one);
    } else {
      combine_piece<float>(one);
    }
  }
}

template <class T>
void SumsBetweenHosts::set_own_inputs(int64_t place, const Subtree& within, std::span<const T*> inputs) const {
  const std::vector<int64_t>& workers = hosts_.workers_of(host_);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const std::vector<Subtree>& parts = partial_sums_.subtrees(workers[i]);
    for (std::size_t s = 0; s < parts.size(); ++s) {
      const int64_t at = parts[s].first - within.first;
      if (at < 0 || at >= within.count) continue;
      inputs[static_cast<std::size_t>(at)] = reinterpret_cast<const T*>(memory_.partial_sums[i][s] + place);
    }
  }
}

template <class T>
void SumsBetweenHosts::combine_piece(const PieceToCombine& one) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  const RowPiece& piece = pieces_[one.piece];
  c10::SmallVector<const T*, 16> inputs;
  for (std::size_t k = 0; k < subtrees(host_).size(); ++k) {
    const Subtree& whole = subtrees(host_)[k];
    inputs.assign(static_cast<std::size_t>(whole.count), nullptr);
    set_own_inputs<T>(piece.place, whole, {inputs.data(), inputs.size()});
    const T* const sum = sum_of(inputs.data(), whole.count, 0, piece.count, scratch_for<T>(whole.count));
    std::memcpy(outgoing(one.owner, k) + (piece.place - slice(one.owner).begin), sum,
                static_cast<std::size_t>(piece.count) * sizeof(T));
  }
}

void SumsBetweenHosts::send_partial_sums() {
  if (pieces_.empty()) return;
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(hosts_.num_workers()));
  std::vector<std::span<std::byte>> from(to.size());
  for (const int64_t w : owners_) to[static_cast<std::size_t>(w)] = all_outgoing(w);
  for (int64_t h = 0; h < hosts_.count(); ++h) {
    if (h != host_) from[static_cast<std::size_t>(partners_[static_cast<std::size_t>(h)])] = all_incoming(h);
  }
  group_.rounds().exchange(to, from);
}

void SumsBetweenHosts::send_to_other_hosts(std::span<std::byte> mine, PlaceOf place_of) const {
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(hosts_.num_workers()));
  std::vector<std::span<std::byte>> from(to.size());
  for (const int64_t partner : partners_) {
    if (partner >= 0) to[static_cast<std::size_t>(partner)] = mine;
  }
  for (const int64_t w : owners_) from[static_cast<std::size_t>(w)] = place_of(w);
  group_.rounds().exchange(to, from);
}

void SumsBetweenHosts::add(int lane, int num_lanes) {
  const Slice& own = slice(worker_);
  const Block pieces = block_of(static_cast<int64_t>(own.end - own.first), num_lanes, lane);
  for (int64_t p = pieces.first; p < pieces.end(); ++p) {
    const RowPiece& piece = pieces_[own.first + static_cast<std::size_t>(p)];
    if (piece.is_double) {
      add_piece<double>(piece);
    } else {
      add_piece<float>(piece);
    }
  }
}

template <class T>
void SumsBetweenHosts::add_piece(const RowPiece& piece) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  const int64_t replicas = group_.num_replicas();
  // Each partial sum stands as the value of its subtree's first replica.
  c10::SmallVector<const T*, 16> inputs(static_cast<std::size_t>(replicas), nullptr);
  for (int64_t h = 0; h < hosts_.count(); ++h) {
    if (h == host_) continue;
    for (std::size_t k = 0; k < subtrees(h).size(); ++k) {
      inputs[static_cast<std::size_t>(subtrees(h)[k].first)] =
          reinterpret_cast<const T*>(incoming(h, k) + (piece.place - slice(worker_).begin));
    }
  }
  set_own_inputs<T>(piece.place, {0, replicas}, {inputs.data(), inputs.size()});
  const T* const sum = sum_of(inputs.data(), replicas, 0, piece.count, scratch_for<T>(replicas));
  std::memcpy(memory_.sums + piece.place, sum, static_cast<std::size_t>(piece.count) * sizeof(T));
}

void SumsBetweenHosts::send_sums() {
  if (pieces_.empty()) return;
  send_to_other_hosts(sums_of(worker_), [&](int64_t w) { return sums_of(w); });
}

int64_t SumsBetweenHosts::bytes_sent(int64_t begin, int64_t end) const {
  const auto within = [&](const Slice& one) {
    return std::max<int64_t>(std::min(end, one.begin + one.bytes) - std::max(begin, one.begin), 0);
  };
  int64_t bytes = within(slice(worker_)) * (hosts_.count() - 1);
  for (const int64_t w : owners_) bytes += within(slice(w)) * static_cast<int64_t>(subtrees(host_).size());
  return bytes;
}

}  // namespace lockstep::internal::exchange
