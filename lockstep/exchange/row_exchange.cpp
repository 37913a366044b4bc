#include "lockstep/exchange/row_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/core/blocks.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/exchange/messages.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline exchange {

namespace {

constexpr int64_t kIdBytes = sizeof(int64_t);

int64_t width_of(const VariableState& variable) {
  const at::Tensor& numbers = variable.numbers();
  return numbers.size(0) == 0 ? 0 : numbers.numel() / numbers.size(0);
}

}  // namespace

RowExchange::RowExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group)
    : variables_(std::move(variables)), group_(group), rows_(variables_.size()), bytes_sent_(variables_.size()) {}

int64_t RowExchange::bytes_of(std::size_t i, int64_t rows) const {
  const VariableState& variable = *variables_[i];
  const auto size = static_cast<int64_t>(at::elementSize(type_of_rows(variable.number_type())));
  const int64_t values = rows * width_of(variable) * size;
  return rows * kIdBytes + (values + kIdBytes - 1) / kIdBytes * kIdBytes;
}

void RowExchange::exchange(const GradientTable& gradients, const std::vector<GradientsOnWorkers>& all) {
  has_.assign(variables_.size(), 0);
  for (auto& of_variable : rows_) of_variable.clear();
  const int64_t own_worker = group_.rounds().worker_index();
  const int64_t num_workers = group_.num_workers();
  const auto block = [&](int64_t w) { return block_of(group_.num_replicas(), num_workers, w); };
  const auto count = [&](std::size_t i, int64_t r) {
    return static_cast<int64_t>(all[i].row_counts[static_cast<std::size_t>(r)]);
  };
  std::vector<int64_t> bytes(static_cast<std::size_t>(num_workers));
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!all[i].in_rows) continue;
    has_[i] = 1;
    rows_[i].resize(static_cast<std::size_t>(group_.num_replicas()));
    bytes_sent_[i] = 0;
    for (int64_t w = 0; w < num_workers; ++w) {
      for (int64_t r = block(w).first; r < block(w).end(); ++r) {
        bytes[static_cast<std::size_t>(w)] += bytes_of(i, count(i, r));
        if (w == own_worker) bytes_sent_[i] += bytes_of(i, count(i, r)) * (num_workers - 1);
      }
    }
  }
  if (std::ranges::all_of(bytes, [](int64_t size) { return size == 0; })) return;
  std::vector<std::vector<std::byte>> memory;
  for (const int64_t size : bytes) memory.emplace_back(static_cast<std::size_t>(size));
  std::byte* to = memory[static_cast<std::size_t>(own_worker)].data();
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!has_[i]) continue;
    for (int64_t r = block(own_worker).first; r < block(own_worker).end(); ++r) {
      const std::shared_ptr<const Rows> own = gradients.own_rows(i, r - block(own_worker).first);
      rows_[i][static_cast<std::size_t>(r)] = own;
      if (!own || own->count() == 0) continue;
      std::memcpy(to, own->ids.data(), static_cast<std::size_t>(own->count() * kIdBytes));
      std::ranges::copy(host_bytes(own->values), to + own->count() * kIdBytes);
      to += bytes_of(i, own->count());
    }
  }
  exchange_with_others(
      group_.rounds(), [&](int64_t) { return std::span(memory[static_cast<std::size_t>(own_worker)]); },
      [&](int64_t w) { return std::span(memory[static_cast<std::size_t>(w)]); });
  for (int64_t w = 0; w < num_workers; ++w) {
    if (w == own_worker) continue;
    const std::vector<std::byte>& from = memory[static_cast<std::size_t>(w)];
    MessageReader reader({reinterpret_cast<const char*>(from.data()), from.size()}, w, "rows of sparse gradients");
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (!has_[i]) continue;
      for (int64_t r = block(w).first; r < block(w).end(); ++r) {
        rows_[i][static_cast<std::size_t>(r)] = std::make_shared<Rows>(read_rows(reader, i, count(i, r)));
      }
    }
    reader.expect_end();
  }
}

Rows RowExchange::read_rows(MessageReader& reader, std::size_t i, int64_t rows) const {
  const at::Tensor& numbers = variables_[i]->numbers();
  Rows all;
  all.ids.reserve(static_cast<std::size_t>(rows));
  int64_t before = -1;
  for (int64_t k = 0; k < rows; ++k) {
    const auto id = reader.get<int64_t>();
    reader.expect(id > before && id < numbers.size(0));
    all.ids.push_back(id);
    before = id;
  }
  all.values =
      at::empty({rows, width_of(*variables_[i])}, numbers.options().dtype(type_of_rows(numbers.scalar_type())));
  // With the gap behind them.
  const std::string_view values = reader.get_bytes(static_cast<uint64_t>(bytes_of(i, rows) - rows * kIdBytes));
  std::ranges::copy(std::as_bytes(std::span(values)).first(all.values.nbytes()),
                    host_bytes_to_write(all.values).begin());
  return all;
}

}  // namespace lockstep::internal::exchange
