// Which cores each worker of a host gets.
#pragma once

#include <vector>

namespace lockstep::tools {

/// Deals `cores` to `workers` in blocks, whose sizes differ by at most one, the larger ones first. Where there are more
/// workers than cores, each worker gets one core, in turn. Empty shares where there are no cores.
std::vector<std::vector<int>> core_shares(const std::vector<int>& cores, int workers);

}  // namespace lockstep::tools
