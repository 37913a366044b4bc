// Any order of what a worker learns while a run ends: frames of all kinds from all others, and that others are gone.
// The first two bytes of the input say how many workers there are, and which of them this is; then each event has six
// bytes.
#include <cstdint>
#include <string>

#include "lockstep/comm/network/end_of_run.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep::internal;
  using lockstep::fuzz::check;
  using Kind = Frame::Kind;
  if (size < 2) return 0;
  const int64_t workers = 2 + data[0] % 5;
  const int64_t self = data[1] % workers;
  const Calls mine{.taken = 3, .returned = 2};
  bool is_frozen = false;
  int ends = 0;
  EndOfRun end_of_run(workers, self,
                      {.freeze =
                           [&] {
                             is_frozen = true;
                             return mine;
                           },
                       .send =
                           [&](int64_t to, const Frame& frame) {
                             check(to >= 0 && to < workers && to != self, "a frame goes to another worker");
                             check(frame.kind != Kind::kFrozen || is_frozen, "who says that it is frozen is");
                             check(frame.text.size() <= kLongestReason, "a reason is bounded");
                           },
                       .end =
                           [&](const RunEnd& end) {
                             ++ends;
                             check(end.reason.size() <= kLongestReason, "a reason is bounded");
                           }});
  constexpr std::size_t kEvent = 6;
  for (std::size_t at = 2; at + kEvent <= size; at += kEvent) {
    const uint8_t* const event = data + at;
    const int64_t other = (self + 1 + event[1] % (workers - 1)) % workers;
    const Calls calls{.taken = event[2], .returned = event[3]};
    const std::string text(event[4], 'x');
    switch (event[0] % 8) {
      case 0: end_of_run.notice(text); break;
      case 1: end_of_run.set_gone(other, static_cast<EndOfRun::Gone>(event[5] % 3), calls); break;
      default: {
        constexpr Kind kKinds[] = {Kind::kHeartbeat, Kind::kEnding, Kind::kFreeze,
                                   Kind::kFrozen,    Kind::kEnd,    Kind::kLeft};
        end_of_run.receive(
            other, {.kind = kKinds[event[0] % 8 - 2], .number = event[5] - uint64_t{8}, .calls = calls, .text = text});
      }
    }
    check(ends <= 1, "a run ends once");
    check((ends == 1) == end_of_run.has_ended(), "whoever has ended says so");
    if (ends == 1) check(end_of_run.end_frame().kind == Kind::kEnd, "whoever has ended tells it");
  }
  return 0;
}
