// Any text as that of a frame in which workers say who they are.
#include "lockstep/comm/network/join/members.h"
#include "tests/fuzz/fuzz.h"

namespace {

/// What is read is written so that it reads the same.
template <class Decode>
bool decodes(const std::string& text, const Decode& decode) {
  const auto value = decode(text);
  if (!value) return false;
  const std::string again = encode(*value);
  const auto second = decode(again);
  lockstep::fuzz::check(second && encode(*second) == again, "what is read stays as it is");
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep::internal;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const bool is_joiner = decodes(text, decode_joiner);
  decodes(text, decode_members);
  decodes(text, decode_attachment);
  if (is_joiner) {
    const Joiner joiner = *decode_joiner(text);
    const Joiner chief{.member = {.host = "a"}, .num_workers = 4, .must_match = "Lockstep 1\nLibTorch 2"};
    const bool fits = joiner.num_workers == 4 && joiner.member.worker >= 0 && joiner.member.worker < 4 &&
                      joiner.must_match == chief.must_match;
    lockstep::fuzz::check(objection_to(joiner, chief).empty() == fits, "worker 0 takes who fits, and no other");
    // Any addresses end in a yes or a no.
    Joiner knowing = chief;
    knowing.expected = {"", "a:1", "[::1]:2", "c:3"};
    lockstep::fuzz::check(fits || !objection_to(joiner, knowing).empty(), "worker 0 takes who fits, and no other");
  }
  return 0;
}
