// What a RowTable gives to checkpoints, and takes from them.
#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/server/table/row_hash.h"
#include "lockstep/server/table/row_table.h"

namespace lockstep::internal::inline server {

namespace {

const int64_t* numbers_of(const at::Tensor& tensor) { return host_numbers<int64_t>(tensor).data(); }

}  // namespace

RowFormat RowTable::format() const {
  RowFormat format{.table = options_.name, .dim = options_.dim, .dtype = options_.dtype, .slots = {}};
  if (!rule_) return format;
  for (const SlotSpec& slot : rule_->slots()) format.slots.push_back(slot.name);
  format.has_updates = rule_->counts();
  return format;
}

TableCut RowTable::cut() { return {format(), rows_.freeze(), seen_.freeze()}; }

void RowTable::take(RowTable&& other) noexcept {
  rows_ = std::move(other.rows_);
  seen_ = std::move(other.seen_);
  evicted_at_ = other.evicted_at_;
}

void RowTable::forget(RowStore& store, int64_t id, uint64_t hash) const {
  const uint32_t place = store.find(id, hash);
  if (place != RowStore::kNowhere) remove(store, place, hash);
}

void RowTable::load(const SavedRows& rows) {
  check(rows, format());
  const at::Tensor ids = rows.ids.contiguous();
  const at::Tensor positions = rows.positions.contiguous();
  const at::Tensor updates = rule_ && rule_->counts() ? rows.updates.contiguous() : ids;
  std::vector<at::Tensor> parts{rows.weights.contiguous()};
  for (const std::string& slot : format().slots) parts.push_back(rows.slots.at(slot).contiguous());
  const auto bytes = static_cast<std::size_t>(row_bytes_);
  const auto count = static_cast<std::size_t>(ids.numel());
  for (std::size_t k = 0; k < count; ++k) check_range(numbers_of(ids)[k]);
  for (std::size_t k = 0; k < count; ++k) {
    const int64_t id = numbers_of(ids)[k];
    const uint64_t hash = row_hash(number_, id);
    if (server_of(hash, servers_) != server_) continue;
    forget(seen_, id, hash);
    uint32_t place = rows_.find(id, hash);
    if (place == RowStore::kNowhere) place = rows_.add(id, hash);
    const RowStore::Writable row = rows_.write(place);
    *row.position = numbers_of(positions)[k];
    if (row.count) *row.count = static_cast<uint32_t>(numbers_of(updates)[k]);
    for (std::size_t s = 0; s < parts.size(); ++s)
      std::memcpy(row.values + s * bytes, host_bytes(parts[s]).data() + k * bytes, bytes);
  }
}

void RowTable::load(const SavedCounts& counts) {
  check(counts, options_.name);
  const at::Tensor ids = counts.ids.contiguous();
  const at::Tensor positions = counts.positions.contiguous();
  const at::Tensor pushes = counts.pushes.contiguous();
  const auto count = static_cast<std::size_t>(ids.numel());
  for (std::size_t k = 0; k < count; ++k) check_range(numbers_of(ids)[k]);
  for (std::size_t k = 0; k < count; ++k) {
    const int64_t id = numbers_of(ids)[k];
    const uint64_t hash = row_hash(number_, id);
    if (server_of(hash, servers_) != server_) continue;
    forget(rows_, id, hash);
    uint32_t place = seen_.find(id, hash);
    if (place == RowStore::kNowhere) place = seen_.add(id, hash);
    const RowStore::Writable seen = seen_.write(place);
    *seen.position = numbers_of(positions)[k];
    *seen.count = static_cast<uint32_t>(numbers_of(pushes)[k]);
  }
}

}  // namespace lockstep::internal::server
