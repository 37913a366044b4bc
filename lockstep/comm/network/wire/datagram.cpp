#include "lockstep/comm/network/wire/datagram.h"

#include <utility>

#include "lockstep/comm/join/authentication.h"
#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline comm {

namespace {

/// worker (8 bytes), count (8); then a frame, and the proof
constexpr std::size_t kHeadBytes = 16;

}  // namespace

std::string encode(const Datagram& datagram, const std::string& key) {
  std::string bytes;
  ByteWriter to(bytes);
  to.put(datagram.worker);
  to.put(datagram.count);
  bytes += encode(datagram.frame);
  to.put(hmac(key, bytes));
  return bytes;
}

std::optional<Datagram> decode_datagram(std::string_view bytes, const std::string& key) {
  Proof proof = {};
  if (bytes.size() < kHeadBytes + proof.size() || bytes.size() > kLongestDatagram) return {};
  const std::string_view signed_part = bytes.substr(0, bytes.size() - proof.size());
  Datagram datagram;
  ByteReader head(signed_part);
  if (!ByteReader(bytes.substr(signed_part.size())).get(proof) || !equal(proof, hmac(key, signed_part))) return {};
  if (!head.get(datagram.worker) || !head.get(datagram.count)) return {};
  const std::string_view rest = head.left();
  FrameReader reader;
  reader.add(rest);
  std::optional<Frame> frame = reader.next();
  if (!frame || encode(*frame).size() != rest.size()) return {};
  datagram.frame = std::move(*frame);
  return datagram;
}

}  // namespace lockstep::internal::comm
