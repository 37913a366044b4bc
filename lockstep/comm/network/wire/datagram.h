// One frame as a datagram, which proves who has sent it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/network/wire/frame.h"

namespace lockstep::internal::inline comm {

struct Datagram {
  int64_t worker = 0;  // that sends it
  uint64_t count = 0;  // how many this worker has sent, with this one
  Frame frame = {};

  bool operator==(const Datagram&) const = default;
};

/// A datagram of a frame with at most kLongestReason bytes of text is not longer.
inline constexpr std::size_t kLongestDatagram = kLongestReason + 128;

/// The bytes of a datagram, and back; nothing for bytes that encode() does not make with this key.
std::string encode(const Datagram& datagram, const std::string& key);
std::optional<Datagram> decode_datagram(std::string_view bytes, const std::string& key);

}  // namespace lockstep::internal::comm
