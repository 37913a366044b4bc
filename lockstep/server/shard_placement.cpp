#include "lockstep/server/shard_placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {

namespace {

int64_t shards_of(const PlacedVariable& variable, const Partitioner& partitioner) {
  if (!partitioner || variable.shape.empty() || variable.stays_whole) return 1;
  const int64_t shards = partitioner(variable.shape, variable.dtype);
  if (shards < 1) {
    throw UsageError("LS-OPTION",
                     fmt::format("the partitioner gave {} shards for variable '{}'", shards, variable.name),
                     "let it return 1 for a variable that is to stay whole");
  }
  return std::max<int64_t>(1, std::min(shards, variable.shape[0]));
}

}  // namespace

std::vector<int64_t> shard_sizes(int64_t axis, int64_t shards) {
  std::vector<int64_t> sizes(static_cast<std::size_t>(shards), axis / shards);
  for (int64_t i = 0; i < axis % shards; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

std::vector<std::vector<Shard>> place_shards(std::span<const PlacedVariable> variables, int64_t servers,
                                             const Partitioner& partitioner, ServerPlacement placement) {
  std::vector<std::vector<Shard>> placed;
  std::vector<int64_t> bytes_on(static_cast<std::size_t>(servers), 0);
  int64_t turn = 0;
  for (const PlacedVariable& variable : variables) {
    auto row_bytes = static_cast<int64_t>(c10::elementSize(variable.dtype));
    for (std::size_t d = 1; d < variable.shape.size(); ++d) row_bytes *= variable.shape[d];
    const int64_t axis = variable.shape.empty() ? 1 : variable.shape[0];
    std::vector<Shard>& shards = placed.emplace_back();
    int64_t first = 0;
    for (const int64_t count : shard_sizes(axis, shards_of(variable, partitioner))) {
      const auto least = std::ranges::min_element(bytes_on) - bytes_on.begin();
      const int64_t server = placement == ServerPlacement::kByBytes ? least : turn++ % servers;
      bytes_on[static_cast<std::size_t>(server)] += count * row_bytes;
      shards.push_back({first, count, server});
      first += count;
    }
  }
  return placed;
}

}  // namespace lockstep::internal::server
