#include "lockstep/comm/network/datagram.h"

#include <cstring>
#include <utility>

#include "lockstep/comm/authentication.h"

namespace lockstep::internal {

namespace {

/// worker (8 bytes), count (8); then a frame, and the proof
constexpr std::size_t kHeadBytes = 16;

}  // namespace

std::string encode(const Datagram& datagram, const std::string& key) {
  std::string bytes(kHeadBytes, '\0');
  std::memcpy(bytes.data(), &datagram.worker, 8);
  std::memcpy(bytes.data() + 8, &datagram.count, 8);
  bytes += encode(datagram.frame);
  const Proof proof = hmac(key, bytes);
  bytes.append(reinterpret_cast<const char*>(proof.data()), proof.size());
  return bytes;
}

std::optional<Datagram> decode_datagram(std::string_view bytes, const std::string& key) {
  Proof proof = {};
  if (bytes.size() < kHeadBytes + proof.size() || bytes.size() > kLongestDatagram) return {};
  const std::string_view signed_part = bytes.substr(0, bytes.size() - proof.size());
  std::memcpy(proof.data(), bytes.data() + signed_part.size(), proof.size());
  if (!equal(proof, hmac(key, signed_part))) return {};
  const std::string_view rest = signed_part.substr(kHeadBytes);
  FrameReader reader;
  reader.add(rest);
  std::optional<Frame> frame = reader.next();
  if (!frame || encode(*frame).size() != rest.size()) return {};
  Datagram datagram{.frame = std::move(*frame)};
  std::memcpy(&datagram.worker, bytes.data(), 8);
  std::memcpy(&datagram.count, bytes.data() + 8, 8);
  return datagram;
}

}  // namespace lockstep::internal
