// Workers of the engine mpi that fail: who is named, how soon, and what is left. mpirun is told to leave the other
// ranks alone; scripts/test-launchers has what it does otherwise.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/network/join/refusal.h"
#include "tests/mpi/mpi_job.h"
#include "tests/support/fault_seeds.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::MpiJob;
using testing::WorkerPlace;

constexpr int64_t kLostMs = 1000;

int64_t now() { return steady_clock::now().time_since_epoch().count(); }

/// Other places of a program at each call.
void linger(std::mt19937& random, std::chrono::microseconds longest) {
  const auto until = steady_clock::now() + std::chrono::microseconds(random() % static_cast<uint64_t>(longest.count()));
  while (steady_clock::now() < until) {
  }
}

/// What the others say: all the same, with these words, and not later than `within` after `since`.
void expect_one_reason(MpiJob& job, int64_t culprit, const std::string& words, int64_t since, milliseconds within) {
  std::string first;
  for (int64_t w = 0; w < static_cast<int64_t>(job.places().size()); ++w) {
    if (w == culprit) continue;
    const auto has_ended = [](const WorkerPlace& one) { return one.has_said() || !MpiJob::is_alive(one); };
    ASSERT_TRUE(job.wait_for(w, has_ended, seconds(30))) << "worker " << w << " says nothing";
    // MPICH's launcher may end the others of a rank that was killed, whatever it is told.
    if (!testing::is_open_mpi() && !job.place(w).has_said()) continue;
    const std::string text = job.place(w).text.data();
    EXPECT_LT(std::chrono::nanoseconds(job.place(w).when - since), within) << text;
    if (first.empty()) first = text;
    EXPECT_EQ(text, first);
  }
  if (first.empty() && !testing::is_open_mpi()) return;
  EXPECT_NE(first.find(words), std::string::npos) << "'" << words << "' is not in: " << first;
}

/// Nothing of the job is left when its workers have ended.
void expect_nothing_left(MpiJob& job) {
  job.kill_all();  // one may stand still
  job.wait();
  EXPECT_EQ(fmt::format("{}", fmt::join(job.left(), ", ")), "");
}

struct Fault {
  const char* how;
  const char* words;  // in the others' reason
  milliseconds within;
};
constexpr Fault kFaults[] = {{"kill", "is gone", seconds(1)},
                             {"stop", "is frozen", milliseconds(2 * kLostMs)},
                             {"exit", "ended its program", seconds(1)},
                             {"throw", "was ended by an exception", seconds(1)},
                             {"abort", "aborted the run: its data ended", seconds(1)}};

class MpiFaults : public ::testing::TestWithParam<Fault> {};

TEST_P(MpiFaults, AreNamedByAllOthersInTime) {
  const Fault& fault = GetParam();
  const std::string how = fault.how;
  const bool by_signal = how == "kill" || how == "stop";
  std::mt19937 random(11);
  const std::vector<int64_t> counts =
      testing::all_engines() ? std::vector<int64_t>{2, 3, 4, 8} : std::vector<int64_t>{3};
  for (int64_t seed = 0; seed < testing::fault_seeds(); ++seed) {
    for (const int64_t count : counts) {
      for (const std::string kind : {"agree", "exchange", "wait"}) {
        if (kind == "wait" && !by_signal) continue;  // it does nothing then
        const int64_t culprit = (seed + 1) % count;
        SCOPED_TRACE(fmt::format("{}, {} of {} workers, worker {}, seed {}", how, kind, count, culprit, seed));
        MpiJob job(count, {"calls", kind, how, std::to_string(culprit), std::to_string(kLostMs), "60000"});
        for (int64_t w = 0; w < count; ++w) {
          const bool is_there = job.wait_for(
              w, [](const WorkerPlace& one) { return one.calls >= 10; }, seconds(60));
          ASSERT_TRUE(is_there) << "worker " << w << " makes no calls";
        }
        int64_t since = 0;
        if (by_signal) {
          linger(random, milliseconds(5));
          since = now();
          job.signal(culprit, how == "kill" ? SIGKILL : SIGSTOP);
        } else {
          ASSERT_TRUE(job.wait_for(culprit, &WorkerPlace::has_said, seconds(30)));
          since = job.place(culprit).when;
        }
        const std::string name = fmt::format("worker {} (process {}", culprit, job.place(culprit).pid.load());
        const std::string who = how == "abort" ? fmt::format("worker {}", culprit) : name;
        expect_one_reason(job, culprit, who, since, fault.within);
        expect_one_reason(job, culprit, fault.words, since, fault.within);
        expect_nothing_left(job);
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, MpiFaults, ::testing::ValuesIn(kFaults),
                         [](const auto& one) { return one.param.how; });

/// While they join, at any moment: some have not met, or have met and begin MPI, which waits for all.
TEST(MpiFaultsWhileJoining, EndTheJoinOfAllOthers) {
  constexpr milliseconds kJoin(4000);
  constexpr milliseconds kLongest = kJoin + internal::kLongestConnectAll + milliseconds(3 * kLostMs);
  std::mt19937 random(5);
  for (int64_t seed = 0; seed < testing::fault_seeds(3); ++seed) {
    for (const int number : {SIGKILL, SIGSTOP}) {
      SCOPED_TRACE(fmt::format("signal {}, seed {}", number, seed));
      const int64_t culprit = seed % 3;
      MpiJob job(3, {"calls", "agree", "kill", std::to_string(culprit), std::to_string(kLostMs),
                     std::to_string(kJoin.count())});
      ASSERT_TRUE(job.wait_for(
          culprit, [](const WorkerPlace& one) { return one.pid != 0; }, seconds(60)));
      linger(random, milliseconds(400));
      job.signal(culprit, number);
      for (int64_t w = 0; w < 3; ++w) {
        if (w == culprit) continue;
        // A rank that waits in MPI_Init_thread() may be ended by MPI itself, which then says why.
        const auto has_ended = [](const WorkerPlace& one) { return one.has_said() || !MpiJob::is_alive(one); };
        ASSERT_TRUE(job.wait_for(w, has_ended, kLongest)) << "worker " << w << " does not end";
        if (!job.place(w).has_said()) continue;
        const std::string text = job.place(w).text.data();
        EXPECT_NE(text.find(fmt::format("worker {}", culprit)), std::string::npos) << text;
      }
      // mpirun may go on to wait for ranks that have died before they had begun MPI: ~MpiJob kills it.
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace lockstep
