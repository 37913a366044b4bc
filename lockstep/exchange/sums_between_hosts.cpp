#include "lockstep/exchange/sums_between_hosts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/exchange/messages.h"
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
    if (h != host_) partners_.push_back(hosts.partner(h, worker_));
  }
  for (int64_t w = 0; w < hosts.num_workers(); ++w) {
    if (hosts.host_of(w) != host_ && hosts.partner(host_, w) == worker_) owners_.push_back(w);
  }
}

void SumsBetweenHosts::lay_out(const RowLayout& row) {
  slices_ = row.cut(0, row.pieces().size(), hosts_.num_workers());
  const std::span<const RowPiece> own = row.pieces(slice(worker_));
  to_add_.assign(own.begin(), own.end());
  to_combine_.clear();
  outgoing_places_.assign(slices_.size(), 0);
  incoming_places_.assign(static_cast<std::size_t>(hosts_.count()), 0);
  outgoing_bytes_ = 0;
  incoming_bytes_ = 0;
  for (const int64_t w : owners_) {
    for (const RowPiece& piece : row.pieces(slice(w))) to_combine_.push_back({piece, w});
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
  grow(outgoing_, outgoing_bytes_);
  grow(incoming_, incoming_bytes_);
}

SumsInMemory SumsBetweenHosts::outgoing(int64_t owner) const {
  std::byte* const first = host_bytes_to_write(outgoing_).data();
  return {first + outgoing_places_[static_cast<std::size_t>(owner)], slice(owner).begin, slice(owner).bytes};
}

SumsInMemory SumsBetweenHosts::incoming(int64_t host) const {
  std::byte* const first = host_bytes_to_write(incoming_).data();
  return {first + incoming_places_[static_cast<std::size_t>(host)], slice(worker_).begin, slice(worker_).bytes};
}

std::span<std::byte> SumsBetweenHosts::sums_of(int64_t owner) const {
  return {memory_.sums + slice(owner).begin, static_cast<std::size_t>(slice(owner).bytes)};
}

void SumsBetweenHosts::combine(int lane, int num_lanes) {
  for (const PieceToCombine& one : share_of<PieceToCombine>(to_combine_, lane, num_lanes)) {
    for (std::size_t k = 0; k < subtrees(host_).size(); ++k)
      add_piece(one.piece, memory_.partial_sums, subtrees(host_)[k], outgoing(one.owner).at(k, one.piece.place));
  }
}

void SumsBetweenHosts::send_partial_sums() {
  if (is_empty()) return;
  exchange_with_others(
      group_.rounds(),
      [&](int64_t w) { return is_owner(w) ? outgoing(w).all(subtrees(host_).size()) : std::span<std::byte>(); },
      [&](int64_t w) {
        const int64_t h = hosts_.host_of(w);
        return is_partner(w) ? incoming(h).all(subtrees(h).size()) : std::span<std::byte>();
      });
}

void SumsBetweenHosts::send_to_other_hosts(std::span<std::byte> mine, PlaceOf place_of) const {
  exchange_with_others(
      group_.rounds(), [&](int64_t w) { return is_partner(w) ? mine : std::span<std::byte>(); },
      [&](int64_t w) { return is_owner(w) ? place_of(w) : std::span<std::byte>(); });
}

void SumsBetweenHosts::add(int lane, int num_lanes) {
  std::vector<SumsOfSubtrees> parts = memory_.partial_sums;
  for (int64_t h = 0; h < hosts_.count(); ++h) {
    if (h != host_) parts.push_back({subtrees(h), incoming(h)});
  }
  for (const RowPiece& piece : share_of<RowPiece>(to_add_, lane, num_lanes))
    add_piece(piece, parts, {0, group_.num_replicas()}, memory_.sums + piece.place);
}

void SumsBetweenHosts::send_sums() {
  if (is_empty()) return;
  send_to_other_hosts(sums_of(worker_), [&](int64_t w) { return sums_of(w); });
}

int64_t SumsBetweenHosts::bytes_sent(int64_t begin, int64_t end) const {
  int64_t bytes = slice(worker_).bytes_within(begin, end) * (hosts_.count() - 1);
  for (const int64_t w : owners_)
    bytes += slice(w).bytes_within(begin, end) * static_cast<int64_t>(subtrees(host_).size());
  return bytes;
}

}  // namespace lockstep::internal::exchange
