// Any bytes as a datagram of a run: as they are, and signed with the run's key, as only a worker can send them.
#include <string>

#include "lockstep/comm/join/authentication.h"
#include "lockstep/comm/network/wire/datagram.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep::internal;
  using lockstep::fuzz::check;
  const std::string key = "the key of a run";
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(!decode_datagram(bytes, key), "nobody is heard who does not know the key");
  const Proof proof = hmac(key, bytes);
  const std::string signed_bytes = bytes + std::string(reinterpret_cast<const char*>(proof.data()), proof.size());
  const auto datagram = decode_datagram(signed_bytes, key);
  if (!datagram) return 0;
  check(encode(*datagram, key) == signed_bytes, "a datagram is what encode() makes");
  check(!decode_datagram(signed_bytes, "the key of another run"), "a datagram is of one run");
  check(datagram->frame.text.size() <= kLongestDatagram, "a text is bounded");
  return 0;
}
