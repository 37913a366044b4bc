#include "lockstep/server/table/row_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/table/loops/update_rows.h"
#include "lockstep/server/table/numbers.h"
#include "lockstep/server/table/row_hash.h"
#include "lockstep/server/table/row_sums.h"

namespace lockstep::internal::inline server {

namespace {

EmbeddingOptions checked(EmbeddingOptions options) {
  check(options);
  return options;
}

/// memcpy() for a number of bytes that is small and mostly a multiple of 64.
void copy_row(char* to, const char* from, std::size_t bytes) {
  std::size_t at = 0;
  for (; at + 64 <= bytes; at += 64) std::memcpy(to + at, from + at, 64);
  if (at < bytes) std::memcpy(to + at, from + at, bytes - at);
}

constexpr int64_t lines_of(int64_t bytes) { return std::min<int64_t>(16, (bytes + 63) / 64); }

}  // namespace

/// Rows that are updated together.
struct RowTable::Batch {
  std::size_t count = 0;
  std::array<char*, kBatch> rows;
  std::array<const void*, kBatch> gradients;
  std::array<const Coefficients*, kBatch> coefficients;
  std::array<Coefficients, kBatch> own;  // where rows count their updates
};

RowTable::RowTable(EmbeddingOptions options, uint64_t seed, int64_t server, int64_t servers)
    : options_(checked(std::move(options))),
      number_(table_number(options_.name)),
      server_(server),
      servers_(servers),
      initial_(options_, seed),
      row_bytes_(options_.dim * static_cast<int64_t>(c10::elementSize(options_.dtype))),
      rows_(row_bytes_, false),
      seen_(0, true) {}

void RowTable::use(std::shared_ptr<const RowRule> rule) {
  const std::vector<SlotSpec>& slots = rule->slots();
  const auto same_name = [](const SlotSpec& a, const SlotSpec& b) { return a.name == b.name; };
  const bool is_alike =
      rule_ && std::ranges::equal(slots, rule_->slots(), same_name) && rule->counts() == rule_->counts();
  if (size() > 0 && !is_alike) {
    throw UsageError("LS-ROW-RULE",
                     fmt::format("table '{}' has rows with the slots of {}, and was given {}", options_.name,
                                 rule_->rule().name(), rule->rule().name()),
                     "give a table one optimizer, before its first push");
  }
  rule_ = std::move(rule);
  known_.clear();
  fresh_slots_.assign(slots.size() * static_cast<std::size_t>(row_bytes_), 0);
  for_stored_type(options_.dtype, [&]<class Stored>(Stored) {
    auto* to = reinterpret_cast<Stored*>(fresh_slots_.data());
    for (const SlotSpec& slot : slots) to = std::fill_n(to, options_.dim, static_cast<Stored>(slot.initial));
  });
  if (is_alike) return;
  rows_ = RowStore((1 + static_cast<int64_t>(slots.size())) * row_bytes_, rule_->counts());
}

void RowTable::refuse(int64_t id) const {
  throw UsageError(
      "LS-ROW-RANGE",
      fmt::format("row {} was asked for of table '{}', which has {} rows", id, options_.name, options_.rows),
      "give ids from 0 to below .rows, or make the table with .rows = 0, which takes any");
}

void RowTable::refuse_misplaced(int64_t id) const {
  throw InternalError("LS-INTERNAL",
                      fmt::format("row {} of table '{}' was sent to server {} of {}, where it does not lie", id,
                                  options_.name, server_, servers_),
                      "please report it with this message");
}

inline uint64_t RowTable::hash_of(int64_t id) const {
  check_range(id);
  const uint64_t hash = row_hash(number_, id);
  if (server_of(hash, servers_) != server_) refuse_misplaced(id);
  return hash;
}

void RowTable::hash(std::span<const int64_t> ids, std::vector<uint64_t>& hashes) const {
  hashes.resize(ids.size());
  for (std::size_t k = 0; k < ids.size(); ++k) hashes[k] = hash_of(ids[k]);
}

/// Calls use(first, end) for all of `count` rows, in order, a batch at a time. Before that it has called ask_index(k)
/// and then ask_row(k) for each of them, so early that the memory which they ask for has come.
template <class AskIndex, class AskRow, class Use>
void RowTable::for_each_batch(std::size_t count, const AskIndex& ask_index, const AskRow& ask_row, const Use& use) {
  const auto for_batch = [count](std::size_t number, const auto& fn) {
    const std::size_t first = number * kBatch;
    if (first < count) fn(first, std::min(count, first + kBatch));
  };
  const auto each = [](const auto& fn) {
    return [&fn](std::size_t first, std::size_t end) {
      for (std::size_t k = first; k < end; ++k) fn(k);
    };
  };
  for_batch(0, each(ask_index));
  for_batch(1, each(ask_index));
  for_batch(0, each(ask_row));
  for (std::size_t number = 0; number * kBatch < count; ++number) {
    for_batch(number + 2, each(ask_index));
    for_batch(number + 1, each(ask_row));
    for_batch(number, use);
  }
}

void RowTable::look_up(std::span<const int64_t> ids, void* weights, int64_t* positions) const {
  const auto bytes = static_cast<std::size_t>(row_bytes_);
  const int64_t lines = lines_of(row_bytes_);
  Ring<uint64_t> hashes;
  Ring<uint32_t> places;
  const auto ask_index = [&](std::size_t k) {
    hashes[k] = hash_of(ids[k]);
    rows_.index().prefetch(hashes[k]);
  };
  const auto ask_row = [&](std::size_t k) {
    places[k] = rows_.index().likely(hashes[k]);
    if (places[k] != RowStore::kNowhere) rows_.prefetch(places[k], lines);
  };
  for_each_batch(ids.size(), ask_index, ask_row, [&](std::size_t first, std::size_t end) {
    for (std::size_t k = first; k < end; ++k) {
      uint32_t place = places[k];
      if (place != RowStore::kNowhere && rows_.id(place) != ids[k]) place = rows_.find(ids[k], hashes[k]);
      char* const to = static_cast<char*>(weights) + k * bytes;
      if (place == RowStore::kNowhere) {
        initial_.write(ids[k], to);
      } else {
        copy_row(to, rows_.values(place), bytes);
      }
      if (positions) positions[k] = place == RowStore::kNowhere ? evicted_at_ : rows_.position(place);
    }
  });
}

RowTable::New RowTable::new_of(std::span<const int64_t> ids) const {
  New found;
  for (const int64_t id : ids) {
    const uint64_t hash = hash_of(id);
    if (rows_.find(id, hash) != RowStore::kNowhere) continue;
    const uint32_t place = options_.admit_after > 1 ? seen_.find(id, hash) : RowStore::kNowhere;
    const int64_t pushes = 1 + (place == RowStore::kNowhere ? 0 : int64_t{seen_.count(place)});
    if (pushes >= options_.admit_after) {
      ++found.rows;
    } else if (place == RowStore::kNowhere) {
      ++found.counts;
    }
  }
  return found;
}

int64_t RowTable::count_new(std::span<const int64_t> ids) const {
  const New found = new_of(ids);
  return found.rows + found.counts;
}

void RowTable::check_room(std::span<const int64_t> ids, int64_t others) const {
  if (options_.limit_bytes == 0) return;
  const auto most = static_cast<int64_t>(ids.size()) + others;
  if (rows_.bytes_with(most) + seen_.bytes_with(most) <= options_.limit_bytes) return;
  const New found = new_of(ids);
  const int64_t bytes = rows_.bytes_with(found.rows + others) + seen_.bytes_with(found.counts);
  if (bytes <= options_.limit_bytes) return;
  throw UsageError(
      "LS-TABLE-FULL",
      fmt::format("table '{}' would take {} bytes on server {} with {} more rows, and its limit is {}", options_.name,
                  bytes, server_, found.rows + others, options_.limit_bytes),
      "give it a higher .limit_bytes, more servers, or .admit_after and .evict_after, which keep fewer rows");
}

bool RowTable::admits(int64_t id, uint64_t hash, int64_t position) {
  if (options_.admit_after <= 1) return true;
  uint32_t place = seen_.find(id, hash);
  if (place == RowStore::kNowhere) place = seen_.add(id, hash);
  const RowStore::Writable seen = seen_.write(place);
  *seen.position = position;
  if (++*seen.count < options_.admit_after) return false;
  remove(seen_, place, hash);
  return true;
}

uint32_t RowTable::make_row(int64_t id, uint64_t hash) {
  const uint32_t place = rows_.add(id, hash);
  char* const values = rows_.write(place).values;
  initial_.write(id, values);
  if (!fresh_slots_.empty()) std::memcpy(values + row_bytes_, fresh_slots_.data(), fresh_slots_.size());
  return place;
}

void RowTable::remove(RowStore& store, uint32_t place, uint64_t hash) const {
  store.remove(place, hash, row_hash(number_, store.id(static_cast<uint32_t>(store.size() - 1))));
}

void RowTable::apply(const RowPush& push) {
  if (!rule_) {
    throw UsageError("LS-ROW-RULE", fmt::format("table '{}' was pushed to, and has no optimizer", options_.name),
                     "make one by make_optimizer(table, options)");
  }
  for_stored_type(options_.dtype, [&]<class Stored>(Stored) {
    if (are_ascending(push.ids)) return apply_distinct<Stored>(push);
    using T = Computed<Stored>;
    const auto sums = summed_rows(push.ids, static_cast<const T*>(push.gradients), options_.dim);
    RowPush distinct = push;
    distinct.ids = sums.ids;
    distinct.gradients = sums.values.data();
    apply_distinct<Stored>(distinct);
  });
}

const Coefficients& RowTable::coefficients_of(uint32_t update, double learning_rate) {
  constexpr std::size_t kKnown = 1024;
  if (known_.empty() || known_rate_ != learning_rate) known_.assign(kKnown, {});
  known_rate_ = learning_rate;
  Known& known = known_[update % kKnown];
  if (known.update != update) known = {update, rule_->coefficients(update, learning_rate)};
  return known.coefficients;
}

template <class Stored>
void RowTable::apply_distinct(const RowPush& push) {
  hash(push.ids, hashes_);
  const auto* const gradients = static_cast<const Computed<Stored>*>(push.gradients);
  const bool counts = rule_->counts();
  const Coefficients common = rule_->coefficients(1, push.learning_rate);
  const int64_t lines = lines_of(rows_.layout().value_bytes);
  Ring<uint32_t> places;
  Batch batch;
  const auto ask_index = [&](std::size_t k) { rows_.index().prefetch(hashes_[k]); };
  const auto ask_row = [&](std::size_t k) {
    places[k] = rows_.index().likely(hashes_[k]);
    if (places[k] != RowStore::kNowhere) rows_.prefetch(places[k], lines);
  };
  for_each_batch(push.ids.size(), ask_index, ask_row, [&](std::size_t first, std::size_t end) {
    batch.count = 0;
    uint32_t last_count = 0;
    for (std::size_t k = first; k < end; ++k) {
      const int64_t id = push.ids[k];
      uint32_t place = places[k];
      if (place != RowStore::kNowhere && rows_.id(place) != id) place = rows_.find(id, hashes_[k]);
      if (place == RowStore::kNowhere) {
        if (!admits(id, hashes_[k], push.position)) continue;
        place = make_row(id, hashes_[k]);
      }
      const RowStore::Writable row = rows_.write(place);
      *row.position = push.position;
      const std::size_t b = batch.count++;
      batch.rows[b] = row.values;
      batch.gradients[b] = gradients + static_cast<int64_t>(k) * options_.dim;
      batch.coefficients[b] = &common;
      if (!counts) continue;
      // Rows that follow each other have the same numbers where they have had equally many updates.
      const uint32_t updates = ++*row.count;
      if (b > 0 && updates == last_count) {
        batch.coefficients[b] = batch.coefficients[b - 1];
      } else {
        batch.own[b] = coefficients_of(updates, push.learning_rate);
        batch.coefficients[b] = &batch.own[b];
      }
      last_count = updates;
    }
    update<Stored>(batch, push);
  });
}

template <class Stored>
void RowTable::update(const Batch& batch, const RowPush& push) {
  using T = Computed<Stored>;
  RowBatch work{.rows = batch.rows.data(),
                .gradients = batch.gradients.data(),
                .coefficients = batch.coefficients.data(),
                .count = static_cast<int64_t>(batch.count),
                .width = options_.dim,
                .factor = push.clip.factor,
                .most = push.clip.most};
  const UpdateRows rows = update_rows<T>(rule_->kind());
  if constexpr (std::is_same_v<T, Stored>) {
    rows(work);
  } else {
    const auto numbers = (1 + rule_->slots().size()) * static_cast<std::size_t>(options_.dim);
    scratch_.resize(kBatch * numbers * sizeof(T));
    std::array<char*, kBatch> wide;
    for (std::size_t b = 0; b < batch.count; ++b) {
      wide[b] = scratch_.data() + b * numbers * sizeof(T);
      std::copy_n(reinterpret_cast<const Stored*>(batch.rows[b]), numbers, reinterpret_cast<T*>(wide[b]));
    }
    work.rows = wide.data();
    rows(work);
    for (std::size_t b = 0; b < batch.count; ++b) {
      const auto* const from = reinterpret_cast<const T*>(wide[b]);
      auto* const to = reinterpret_cast<Stored*>(batch.rows[b]);
      for (std::size_t i = 0; i < numbers; ++i) to[i] = static_cast<Stored>(from[i]);
    }
  }
}

int64_t RowTable::evict(RowStore& store, int64_t before) const {
  const int64_t size = store.size();
  // Invariant: rows behind `place` stay, so the last one, which moves to the place of one that goes, stays as well.
  for (int64_t k = size - 1; k >= 0; --k) {
    const auto place = static_cast<uint32_t>(k);
    if (store.position(place) < before) remove(store, place, row_hash(number_, store.id(place)));
  }
  return size - store.size();
}

int64_t RowTable::evict(int64_t before, int64_t position) {
  const int64_t rows = evict(rows_, before);
  if (rows > 0) evicted_at_ = position;
  return rows + evict(seen_, before);
}

int64_t RowTable::bytes() const {
  return rows_.bytes() + seen_.bytes() +
         static_cast<int64_t>(fresh_slots_.capacity() + hashes_.capacity() * sizeof(uint64_t) + scratch_.capacity() +
                              known_.capacity() * sizeof(Known));
}

}  // namespace lockstep::internal::server
