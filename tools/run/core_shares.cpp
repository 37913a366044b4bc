#include "tools/run/core_shares.h"

#include <cstddef>

namespace lockstep::tools {

std::vector<std::vector<int>> core_shares(const std::vector<int>& cores, int workers) {
  const std::size_t count = static_cast<std::size_t>(workers);
  std::vector<std::vector<int>> shares(count);
  if (cores.empty()) return shares;
  if (cores.size() < count) {
    for (std::size_t w = 0; w < count; ++w) shares[w] = {cores[w % cores.size()]};
    return shares;
  }
  auto next = cores.begin();
  for (std::size_t w = 0; w < count; ++w) {
    const auto size = static_cast<std::ptrdiff_t>(cores.size() / count + (w < cores.size() % count ? 1 : 0));
    shares[w].assign(next, next + size);
    next += size;
  }
  return shares;
}

}  // namespace lockstep::tools
