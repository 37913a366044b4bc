// Conformance of worlds: calls that do not fit together, and abort().
#include <algorithm>
#include <array>

#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

/// A worker that another size meets throws in this call. The others throw in this one or in the next.
void different_sizes(const Trial& trial) {
  struct Case {
    int64_t sent;
    int64_t expected;
  };
  for (const Case& one : {Case{16, 8}, Case{8, 16}, Case{0, 1}, Case{1, 0}, Case{1'000'001, 3}, Case{3, 1'000'001}}) {
    const int64_t sent = std::min(one.sent, trial.conformance->largest_bytes);
    const int64_t sender = 0;
    const int64_t receiver = trial.workers - 1;
    Latch begun(trial, trial.workers);
    Job job(trial);
    job.run([&](Worker& self) {
      const auto size = [&](int64_t from, int64_t to) {
        return static_cast<std::size_t>(from == sender && to == receiver ? sent : 100);
      };
      self.begin(begun);
      Messages messages(self, {.size = size}, 1);
      if (self.index() == receiver) messages.expect_size(sender, static_cast<std::size_t>(one.expected));
      const PeerError error = self.error_of("exchange() of different sizes", [&] {
        self.exchange(messages.to(), messages.from());
        if (self.index() != receiver) self.agree("after");
      });
      messages.expect_untouched();
      self.expect_over(error);
    });
  }
}

/// The first workers agree while the others exchange something or nothing.
void different_calls(const Trial& trial) {
  for (int64_t turn = 2; turn < 2 * trial.workers; ++turn) {
    const int64_t agreeing = turn / 2;
    const auto bytes = static_cast<std::size_t>(turn % 2 * 40);
    Latch begun(trial, trial.workers);
    Job job(trial);
    job.run([&](Worker& self) {
      Messages messages(self, {.size = [&](int64_t, int64_t) { return bytes; }}, 1);
      self.begin(begun);
      const PeerError error = self.error_of("agree() against exchange()", [&] {
        if (self.index() < agreeing) {
          self.agree("a record");
        } else {
          self.exchange(messages.to(), messages.from());
        }
      });
      messages.expect_untouched();
      self.expect_over(error);
    });
  }
}

enum class Waiting : uint8_t { kInAgree, kInExchange, kNotYet };

/// Each worker in turn aborts while the others wait for it, or before they call.
void abort_while(const Trial& trial, Waiting waiting) {
  for (int64_t turn = 0; turn < std::max<int64_t>(trial.workers, 6); ++turn) {
    const int64_t culprit = turn % trial.workers;
    const std::string reason = fmt::format("no more memory, {}", turn);
    const int64_t most = std::min<int64_t>(trial.conformance->largest_bytes, (int64_t{8} << 20) / trial.workers);
    Latch begun(trial, trial.workers);
    Latch ready(trial, trial.workers);
    Job job(trial);
    job.run([&](Worker& self) {
      Random random(static_cast<uint64_t>(turn));
      Messages messages(self, {.size = [&](int64_t, int64_t) { return static_cast<std::size_t>(most); }}, 1);
      const bool aborts = self.index() == culprit;
      self.begin(begun);
      if (waiting == Waiting::kNotYet) {
        if (aborts) self.abort(reason);
        self.arrive_and_wait(ready);
      } else if (aborts) {
        self.arrive_and_wait(ready);
        linger(random, microseconds(1000));
        self.abort(reason);
      } else {
        ready.count_down();
      }
      const PeerError error = self.error_of("a call in an aborted run", [&] {
        if (waiting == Waiting::kInExchange) {
          self.exchange(messages.to(), messages.from());
        } else {
          self.agree("a record");
        }
      });
      messages.expect_untouched();
      self.expect_names(error, culprit, reason);
      self.expect_over(error);
    });
  }
}

void abort_in_agree(const Trial& trial) { abort_while(trial, Waiting::kInAgree); }
void abort_in_exchange(const Trial& trial) { abort_while(trial, Waiting::kInExchange); }
void abort_before(const Trial& trial) { abort_while(trial, Waiting::kNotYet); }

void first_reason(const Trial& trial) {
  Latch begun(trial, trial.workers);
  Latch over(trial, trial.workers);
  Job job(trial);
  job.run([&](Worker& self) {
    self.begin(begun);
    if (self.index() == 1) {
      self.abort("the first reason");
      self.abort("the second reason");
    }
    const PeerError error = self.error_of("agree()", [&] { self.agree("aborted"); });
    self.abort("a reason of one that was told");
    self.arrive_and_wait(over);
    self.abort("a reason of long afterwards");
    self.expect_names(error, 1, "the first reason");
    self.expect_over(error);
  });
}

/// All workers abort at the same time. Each learns of one of these aborts, and then stays with it.
void aborts_at_once(const Trial& trial) {
  for (uint64_t turn = 0; turn < 10; ++turn) {
    Latch begun(trial, trial.workers);
    Job job(trial);
    job.run([&](Worker& self) {
      Random random(turn * 64 + static_cast<uint64_t>(self.index()));
      self.begin(begun);
      linger(random, microseconds(50));
      self.abort(fmt::format("the reason of worker {}.", self.index()));
      const PeerError error = self.error_of("agree()", [&] { self.agree("aborted"); });
      bool known = false;
      for (int64_t w = 0; w < self.workers(); ++w) {
        known = known || std::string_view(error.what()).find(fmt::format("the reason of worker {}.", w)) !=
                             std::string_view::npos;
      }
      expect(known, fmt::format("worker {} got '{}', which has no worker's reason", self.index(), error.what()));
      self.expect_over(error);
    });
  }
}

/// A thread beside the calls aborts in the middle of exchanges, at any moment. What was exchanged before is right, and
/// the memory of the exchange that failed is the caller's.
void abort_beside_calls(const Trial& trial) {
  for (int64_t turn = 0; turn < 12; ++turn) {
    const int64_t culprit = turn % trial.workers;
    const int64_t most = std::min<int64_t>(trial.conformance->largest_bytes, (int64_t{4} << 20) / trial.workers);
    const int64_t bytes = turn % 3 == 0 ? std::min<int64_t>(most, 100) : most;
    std::vector<std::unique_ptr<Messages>> left(static_cast<std::size_t>(trial.workers));
    {
      Job job(trial);
      job.run([&](Worker& self) {
        std::thread aborting;
        const auto end = steady_clock::now() + trial.conformance->patience;
        std::unique_ptr<Messages> messages;
        const auto calls = [&] {
          for (uint64_t round = 1; steady_clock::now() < end; ++round) {
            const auto size = [&](int64_t, int64_t) { return static_cast<std::size_t>(bytes); };
            messages = std::make_unique<Messages>(self, Messages::Shape{.size = size}, round);
            if (self.index() == culprit && round == 3) {
              aborting = std::thread([&world = self.world(), turn] {
                Random random(static_cast<uint64_t>(turn));
                linger(random, microseconds(4000));
                world.abort("from beside");
              });
            }
            messages->exchange(self);
          }
        };
        const std::exception_ptr found = thrown_by(calls);
        if (found && messages) messages->reuse();
        if (aborting.joinable()) aborting.join();
        const PeerError error = self.error_of("exchange() while a thread beside it aborts", [&] {
          if (found) std::rethrow_exception(found);
        });
        self.expect_names(error, culprit, "from beside");
        // Half of them are freed at once: a late access is found by tools that watch freed memory.
        if (turn % 2 == 0) left[static_cast<std::size_t>(self.index())] = std::move(messages);
        messages.reset();
        self.expect_over(error);
      });
    }
    for (const auto& messages : left) {
      if (messages) messages->expect_reused();
    }
  }
}

/// A call to which nobody comes is ended by its own worker, from another thread.
void abort_beside_a_wait(const Trial& trial) {
  for (int64_t culprit = 0; culprit < trial.workers; ++culprit) {
    Latch over(trial, trial.workers);
    Job job(trial);
    job.run([&](Worker& self) {
      std::thread aborting;
      if (self.index() == culprit) {
        aborting = std::thread([&world = self.world(), culprit] {
          Random random(static_cast<uint64_t>(culprit));
          linger(random, microseconds(2000));
          world.abort("waited enough");
        });
      } else {
        self.arrive_and_wait(over);
      }
      const std::exception_ptr found = thrown_by([&] { self.agree("a record"); });
      if (aborting.joinable()) {
        aborting.join();
        over.count_down();
      }
      const PeerError error = self.error_of("agree()", [&] {
        if (found) std::rethrow_exception(found);
      });
      self.expect_names(error, culprit, "waited enough");
      self.expect_over(error);
    });
  }
}

void abort_at_the_end(const Trial& trial) {
  Latch left(trial, trial.workers);
  Job job(trial);
  job.run([&](Worker& self) {
    self.agree("the last");
    if (self.index() != 0) self.leave();
    self.arrive_and_wait(left);
    if (self.index() != 0) return;
    self.abort("nobody is here");
    self.abort("nobody is here");
    self.error_of("agree()", [&] { self.agree("alone"); });
  });
}

constexpr const char* kFit =
    "compare the kind and the sizes of calls before a byte is moved, also where nothing is sent";
constexpr const char* kAbort = "abort() ends the calls of all workers, those that wait too, with its worker and reason";
constexpr const char* kFirst = "keep the first failure, and throw it in every later call";

constexpr std::array<WorldCheck, 10> kWorldFailureChecks{{
    {"DifferentSizesEndTheRun", different_sizes, kFit},
    {"AgreementAgainstExchangeEndsTheRun", different_calls, kFit},
    {"AnAbortReachesThoseWhoWaitInAgree", abort_in_agree, kAbort},
    {"AnAbortReachesThoseWhoWaitInExchange", abort_in_exchange, kAbort},
    {"AnAbortReachesThoseWhoCallLater", abort_before, kAbort},
    {"TheFirstReasonStays", first_reason, kFirst},
    {"AbortsAtTheSameTimeEndTheRunWithOneOfTheirReasons", aborts_at_once, kFirst},
    {"AnAbortBesideCallsEndsTheRunAtAnyMoment", abort_beside_calls, kAbort},
    {"AnAbortBesideACallThatWaitsEndsIt", abort_beside_a_wait, kAbort},
    {"AnAbortWhenOthersHaveLeftDoesNoHarm", abort_at_the_end, "abort() does not wait, and needs nobody to listen"},
}};

}  // namespace

std::span<const WorldCheck> world_failure_checks() { return kWorldFailureChecks; }

}  // namespace lockstep::internal::testing
