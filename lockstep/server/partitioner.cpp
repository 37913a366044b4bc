#include "lockstep/server/partitioner.h"

#include <algorithm>
#include <limits>

#include "lockstep/server/option_checks.h"

namespace lockstep {

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// The limit that was given, checked.
int64_t limit_of(const char* who, std::optional<int64_t> max_shards) {
  if (max_shards) internal::check_at_least(1, who, "max_shards", *max_shards);
  return max_shards.value_or(kNoLimit);
}

constexpr int64_t parts_of(int64_t whole, int64_t part) { return whole / part + (whole % part != 0 ? 1 : 0); }

/// The bytes of one element of the first axis.
int64_t row_bytes_of(c10::IntArrayRef shape, c10::ScalarType dtype) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape.slice(1)) bytes *= size;
  return bytes;
}

}  // namespace

Partitioner fixed_shards_partitioner(int64_t shards) {
  internal::check_at_least(1, "fixed_shards_partitioner", "shards", shards);
  return [shards](c10::IntArrayRef shape, c10::ScalarType) { return std::max<int64_t>(1, std::min(shards, shape[0])); };
}

Partitioner min_size_partitioner(int64_t bytes, std::optional<int64_t> max_shards) {
  constexpr const char* kWho = "min_size_partitioner";
  internal::check_at_least(1, kWho, "bytes", bytes);
  return [bytes, most = limit_of(kWho, max_shards)](c10::IntArrayRef shape, c10::ScalarType dtype) {
    const int64_t parts = parts_of(shape[0] * row_bytes_of(shape, dtype), bytes);
    return std::max<int64_t>(1, std::min({shape[0], most, parts}));
  };
}

Partitioner max_size_partitioner(int64_t bytes, std::optional<int64_t> max_shards) {
  constexpr const char* kWho = "max_size_partitioner";
  internal::check_at_least(1, kWho, "bytes", bytes);
  return [bytes, most = limit_of(kWho, max_shards)](c10::IntArrayRef shape, c10::ScalarType dtype) {
    const int64_t row_bytes = row_bytes_of(shape, dtype);
    if (row_bytes == 0) return int64_t{1};
    const int64_t rows = std::max<int64_t>(1, bytes / row_bytes);
    return std::max<int64_t>(1, std::min(most, parts_of(shape[0], rows)));
  };
}

}  // namespace lockstep
