// Any bytes as the events of a record, which a run of two workers then repeats.
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/server/protocol/chief_machine.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/server/record/run_replay.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep::internal;
using lockstep::fuzz::check;

std::vector<RecordEvent> events_of(std::string_view bytes) {
  constexpr std::size_t kMost = 1000;
  std::vector<RecordEvent> events;
  EventCoder coder;
  RecordEvent event;
  for (std::size_t size = 0; size < kMost && !bytes.empty() && coder.get(bytes, event);) {
    size += 1 + event.states.size();
    events.push_back(event);
  }
  return events;
}

std::string bytes_of(const std::vector<RecordEvent>& events) {
  std::string bytes;
  EventCoder coder;
  for (const RecordEvent& one : events) coder.put(one, bytes);
  return bytes;
}

void repeat(const RunEvents& run) {
  std::vector<GiveStep> given;
  RunReplay replay(run, {"a"}, 2, 0,
                   {.to_worker =
                        [&](const ToWorker& one) {
                          if (const auto* give = std::get_if<GiveStep>(&one.message)) given.push_back(*give);
                        },
                    .to_server = [](const ToServer&) {}},
                   [](const Payload&) { return std::string(); });
  ChiefMachine machine({.workers = 2});
  machine.follow(replay);
  const auto work = [&](const auto& fn) {
    ChiefOutput out;
    fn(out);
    machine.collect(out);
    for (const ToWorker& one : out.to_workers) replay.carry(one);
    for (const ToServer& one : out.to_servers) replay.carry(one);
  };
  work([&](ChiefOutput& out) {
    machine.worker_joined(0, out);
    machine.worker_joined(1, out);
  });
  for (int64_t step = 0; step < 4; ++step) {
    replay.schedules(step, 0);
    work([&](ChiefOutput&) { machine.schedule({}); });
    for (std::size_t i = 0; i < given.size(); ++i) {  // more of them come meanwhile
      const GiveStep give = given[i];
      replay.carry(ToServer{.message = PullRequest{.epoch = 1, .from = give.to, .step = give.step}});
      replay.answered({.step = give.step});
      replay.reported({.epoch = 1, .from = give.to, .step = give.step, .pushed = true, .pulled = {{}}});
      for (bool goes_on = true; goes_on;) {
        work([&](ChiefOutput& out) { goes_on = replay.take_next(machine, out); });
      }
    }
    given.clear();
    if (replay.read_here()) replay.end_read();
  }
  check(!replay.is_stuck() || !replay.is_at_end(), "who has done all is not stuck");
  replay.passes_over_read();
  replay.waits_for_program();
  replay.wants_cancel();
  replay.drains(true);
  replay.let_go();
  check(replay.has_sent_all(), "nothing is held back in the end");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::vector<RecordEvent> events = events_of({reinterpret_cast<const char*>(data), size});
  check(events_of(bytes_of(events)) == events, "events are what their bytes are");
  try {
    repeat({.events = events});
  } catch (const lockstep::Error& error) {
    lockstep::fuzz::check_message(error);
  }
  return 0;
}
