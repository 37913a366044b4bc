#include "lockstep/server/table/cut_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline server {

namespace {

using Places = std::vector<uint32_t>;

/// About how many bytes of a tensor are loaded at once.
constexpr int64_t kBytesAtOnce = int64_t{1} << 20;

std::shared_ptr<const Places> ascending(const FrozenRows& rows) {
  auto places = std::make_shared<Places>(static_cast<std::size_t>(rows.size()));
  std::iota(places->begin(), places->end(), uint32_t{0});
  std::ranges::sort(*places, {}, [&](uint32_t place) { return rows.id(place); });
  return places;
}

/// Makes bytes of a tensor whose rows take `width` each: copy(place, first, bytes) writes those of one row from its
/// byte `first` on.
template <class Copy>
std::function<void(uint64_t, std::span<std::byte>)> reader_of(std::shared_ptr<const Places> places, uint64_t width,
                                                              Copy copy) {
  return [places = std::move(places), width, copy = std::move(copy)](uint64_t begin, std::span<std::byte> to) {
    uint64_t row = begin / width;
    uint64_t first = begin % width;
    while (!to.empty()) {
      const auto count = static_cast<std::size_t>(std::min<uint64_t>(width - first, to.size()));
      copy((*places)[row++], first, to.first(count));
      to = to.subspan(count);
      first = 0;
    }
  };
}

/// An int64 tensor of number(place).
template <class Number>
ServedTensor numbers(const std::string& name, const std::shared_ptr<const Places>& places, Number number) {
  const auto copy = [number = std::move(number)](uint32_t place, uint64_t first, std::span<std::byte> to) {
    const int64_t value = number(place);
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(&value) + first, to.size());
  };
  return {name, at::kLong, {static_cast<int64_t>(places->size())}, reader_of(places, sizeof(int64_t), copy)};
}

[[noreturn]] void refuse(const SavedTableSource& source, const std::string& part, const std::string& expected) {
  const auto found = source.forms().find(part);
  const std::string has = found == source.forms().end() ? std::string("no")
                                                        : fmt::format("{} [{}] as", c10::toString(found->second.dtype),
                                                                      fmt::join(found->second.sizes, ", "));
  checkpoint::throw_damaged(source.what(), fmt::format("has {} '{}', and its rows need {}", has, part, expected));
}

/// Throws where a part is missing or of another form.
void require(const SavedTableSource& source, const std::string& part, at::ScalarType dtype,
             const std::vector<int64_t>& sizes) {
  const auto found = source.forms().find(part);
  if (found != source.forms().end() && found->second.dtype == dtype && found->second.sizes == sizes) return;
  refuse(source, part, fmt::format("{} [{}]", c10::toString(dtype), fmt::join(sizes, ", ")));
}

/// How many ids there are.
int64_t count_in(const SavedTableSource& source, const std::string& part) {
  const auto found = source.forms().find(part);
  if (found == source.forms().end() || found->second.sizes.size() != 1) refuse(source, part, "one dimension");
  return found->second.sizes.front();
}

/// Ids that ascend from call to call: each row is there once.
class Ascending {
 public:
  explicit Ascending(const SavedTableSource& source) : source_(source) {}
  void check(const at::Tensor& ids) {
    for (const int64_t id : host_numbers<int64_t>(ids)) {
      if (!is_first_ && id <= last_)
        checkpoint::throw_damaged(source_.what(), fmt::format("has row {} behind row {}", id, last_));
      last_ = id;
      is_first_ = false;
    }
  }

 private:
  const SavedTableSource& source_;
  int64_t last_ = 0;
  bool is_first_ = true;
};

/// Counts are kept in 32 bits.
void check_counts(const at::Tensor& counts, const SavedTableSource& source) {
  for (const int64_t count : host_numbers<int64_t>(counts)) {
    if (count >= 0 && count <= std::numeric_limits<uint32_t>::max()) continue;
    checkpoint::throw_damaged(source.what(), fmt::format("has a row with the count {}", count));
  }
}

}  // namespace

std::vector<ServedTensor> tensors_of(std::shared_ptr<const TableCut> cut) {
  const RowFormat& format = cut->format();
  const auto name = [&](const std::string& part) { return format.table + "/" + part; };
  std::vector<ServedTensor> tensors;
  const auto places = ascending(cut->frozen());
  tensors.push_back(numbers(name("ids"), places, [cut](uint32_t place) { return cut->frozen().id(place); }));
  tensors.push_back(
      numbers(name("positions"), places, [cut](uint32_t place) { return cut->frozen().position(place); }));
  const auto bytes = static_cast<uint64_t>(format.dim) * c10::elementSize(format.dtype);
  const auto add_values = [&](const std::string& part, std::size_t number) {
    const auto copy = [cut, at = number * bytes](uint32_t place, uint64_t first, std::span<std::byte> to) {
      std::memcpy(to.data(), cut->frozen().values(place) + at + first, to.size());
    };
    tensors.push_back(
        {name(part), format.dtype, {static_cast<int64_t>(places->size()), format.dim}, reader_of(places, bytes, copy)});
  };
  add_values("weights", 0);
  for (std::size_t s = 0; s < format.slots.size(); ++s) add_values(format.slots[s], s + 1);
  if (format.has_updates) {
    tensors.push_back(
        numbers(name("updates"), places, [cut](uint32_t place) { return int64_t{cut->frozen().count(place)}; }));
  }
  if (cut->counted() == 0) return tensors;
  const auto counted = ascending(cut->frozen_counts());
  tensors.push_back(
      numbers(name("counted_ids"), counted, [cut](uint32_t place) { return cut->frozen_counts().id(place); }));
  tensors.push_back(numbers(name("counted_positions"), counted,
                            [cut](uint32_t place) { return cut->frozen_counts().position(place); }));
  tensors.push_back(numbers(name("counted_pushes"), counted,
                            [cut](uint32_t place) { return int64_t{cut->frozen_counts().count(place)}; }));
  return tensors;
}

void load_rows(RowTable& table, const RowFormat& format, SavedTableSource& source) {
  const int64_t count = count_in(source, "ids");
  require(source, "ids", at::kLong, {count});
  require(source, "positions", at::kLong, {count});
  require(source, "weights", format.dtype, {count, format.dim});
  if (count > 0) {  // a table without rows may have been saved before it had an optimizer
    for (const std::string& slot : format.slots) require(source, slot, format.dtype, {count, format.dim});
  }
  if (format.has_updates && count > 0) require(source, "updates", at::kLong, {count});
  const int64_t bytes = format.dim * static_cast<int64_t>(c10::elementSize(format.dtype));
  const int64_t at_once = std::clamp<int64_t>(kBytesAtOnce / bytes, 1, kBytesAtOnce / 8);
  Ascending order(source);
  for (int64_t first = 0; first < count; first += at_once) {
    const int64_t some = std::min(at_once, count - first);
    SavedRows rows{.ids = source.next_rows("ids", some),
                   .positions = source.next_rows("positions", some),
                   .weights = source.next_rows("weights", some),
                   .slots = {},
                   .updates = {}};
    order.check(rows.ids);
    for (const std::string& slot : format.slots) rows.slots[slot] = source.next_rows(slot, some);
    if (format.has_updates) {
      rows.updates = source.next_rows("updates", some);
      check_counts(rows.updates, source);
    }
    table.load(rows);
  }
  if (!source.forms().contains("counted_ids")) return;
  const int64_t counted = count_in(source, "counted_ids");
  for (const char* const part : {"counted_ids", "counted_positions", "counted_pushes"})
    require(source, part, at::kLong, {counted});
  Ascending counted_order(source);
  for (int64_t first = 0; first < counted; first += kBytesAtOnce / 8) {
    const int64_t some = std::min(kBytesAtOnce / 8, counted - first);
    const SavedCounts counts{.ids = source.next_rows("counted_ids", some),
                             .positions = source.next_rows("counted_positions", some),
                             .pushes = source.next_rows("counted_pushes", some)};
    counted_order.check(counts.ids);
    check_counts(counts.pushes, source);
    table.load(counts);
  }
}

}  // namespace lockstep::internal::server
