// Which gradients of a step are not finite, as all workers say it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline gradient {

/// A variable whose gradient is not finite.
struct NotFinite {
  uint64_t variable;               // its index in the optimizer
  std::vector<uint64_t> replicas;  // whose own gradients are not; ids over all workers, ascending
  bool in_sum;                     // the sum over replicas is not
  bool operator==(const NotFinite&) const = default;
};

/// At most so many variables are told and named.
inline constexpr std::size_t kMostNotFinite = 5;

/// Turns what one worker found into bytes, and back. Of bytes that encode does not make, decode gives what can be read.
std::string encode(const std::vector<NotFinite>& found);
std::vector<NotFinite> decode_not_finite(std::string_view bytes);

/// What all workers found, by variable in ascending order. Where a replica's own gradient is not finite, the sum is not
/// either, and only the replicas count.
std::vector<NotFinite> join(const std::vector<std::vector<NotFinite>>& by_worker);

}  // namespace lockstep::internal::gradient
