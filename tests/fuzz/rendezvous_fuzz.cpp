// Any bytes as a datagram between workers of one host.
#include <string_view>

#include "lockstep/comm/shared_memory/rendezvous_messages.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep::internal;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto message = decode_rendezvous(bytes);
  if (message) lockstep::fuzz::check(encode(*message) == bytes, "a message is what encode() makes");
  return 0;
}
