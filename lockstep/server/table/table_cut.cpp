#include "lockstep/server/table/table_cut.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline server {

namespace {

/// The places from `first` on, at most `count`, whose rows have changed after `since`.
std::vector<uint32_t> places_of(const FrozenRows& rows, int64_t first, int64_t count, int64_t since) {
  std::vector<uint32_t> places;
  const int64_t end = std::min(rows.size(), first + count);
  for (int64_t k = first; k < end; ++k) {
    const auto place = static_cast<uint32_t>(k);
    if (rows.position(place) > since) places.push_back(place);
  }
  return places;
}

/// An int64 tensor of number(place) for each place.
template <class Number>
at::Tensor numbers_of(const std::vector<uint32_t>& places, const Number& number) {
  const at::Tensor all = at::empty({static_cast<int64_t>(places.size())}, at::kLong);
  auto* to = host_numbers_to_write<int64_t>(all).data();
  for (const uint32_t place : places) *to++ = number(place);
  return all;
}

[[noreturn]] void refuse(const std::string& table, const std::string& what) {
  throw UsageError("LS-STATE-MISFIT", fmt::format("rows of table '{}' were given {}", table, what),
                   "give rows as a checkpoint of the same table, with an optimizer of the same rule, has them");
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return fmt::format("({}) of {}", fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
}

void check_numbers(const at::Tensor& tensor, const char* name, int64_t count, const std::string& table) {
  if (tensor.defined() && tensor.scalar_type() == at::kLong && tensor.dim() == 1 && tensor.size(0) == count) return;
  refuse(table, fmt::format("as {}: {}, expected ({}) of Long", name, text_of(tensor), count));
}

int64_t count_of(const at::Tensor& ids, const std::string& table) {
  if (!ids.defined() || ids.dim() != 1) refuse(table, fmt::format("as ids: {}, expected one dimension", text_of(ids)));
  return ids.size(0);
}

}  // namespace

SavedRows TableCut::rows(int64_t first, int64_t count, int64_t since) const {
  const std::vector<uint32_t> places = places_of(rows_, first, count, since);
  SavedRows saved;
  saved.ids = numbers_of(places, [&](uint32_t place) { return rows_.id(place); });
  saved.positions = numbers_of(places, [&](uint32_t place) { return rows_.position(place); });
  if (format_.has_updates)
    saved.updates = numbers_of(places, [&](uint32_t place) { return int64_t{rows_.count(place)}; });
  const auto bytes = static_cast<std::size_t>(format_.dim) * c10::elementSize(format_.dtype);
  const auto part = [&](std::size_t number) {
    const at::Tensor all = at::empty({static_cast<int64_t>(places.size()), format_.dim}, format_.dtype);
    std::byte* to = host_bytes_to_write(all).data();
    for (const uint32_t place : places) {
      std::memcpy(to, rows_.values(place) + number * bytes, bytes);
      to += bytes;
    }
    return all;
  };
  saved.weights = part(0);
  for (std::size_t s = 0; s < format_.slots.size(); ++s) saved.slots[format_.slots[s]] = part(s + 1);
  return saved;
}

SavedCounts TableCut::counts(int64_t first, int64_t count, int64_t since) const {
  const std::vector<uint32_t> places = places_of(seen_, first, count, since);
  return {.ids = numbers_of(places, [&](uint32_t place) { return seen_.id(place); }),
          .positions = numbers_of(places, [&](uint32_t place) { return seen_.position(place); }),
          .pushes = numbers_of(places, [&](uint32_t place) { return int64_t{seen_.count(place)}; })};
}

void check(const SavedRows& rows, const RowFormat& format) {
  const std::string& table = format.table;
  const int64_t count = count_of(rows.ids, table);
  check_numbers(rows.ids, "ids", count, table);
  check_numbers(rows.positions, "positions", count, table);
  const auto check_values = [&](const at::Tensor& values, const std::string& name) {
    if (values.defined() && values.scalar_type() == format.dtype && values.dim() == 2 && values.size(0) == count &&
        values.size(1) == format.dim) {
      return;
    }
    refuse(table, fmt::format("as {}: {}, expected ({}, {}) of {}", name, text_of(values), count, format.dim,
                              c10::toString(format.dtype)));
  };
  check_values(rows.weights, "weights");
  for (const std::string& slot : format.slots) {
    const auto found = rows.slots.find(slot);
    if (found == rows.slots.end()) refuse(table, fmt::format("without the slot '{}'", slot));
    check_values(found->second, fmt::format("slot '{}'", slot));
  }
  for (const auto& [name, values] : rows.slots) {
    if (std::ranges::find(format.slots, name) == format.slots.end()) {
      refuse(table, fmt::format("with the slot '{}', which its optimizer does not have", name));
    }
  }
  if (format.has_updates) check_numbers(rows.updates, "counts of updates", count, table);
}

void check(const SavedCounts& counts, const std::string& table) {
  const int64_t count = count_of(counts.ids, table);
  check_numbers(counts.ids, "ids", count, table);
  check_numbers(counts.positions, "positions", count, table);
  check_numbers(counts.pushes, "counts of pushes", count, table);
}

}  // namespace lockstep::internal::server
