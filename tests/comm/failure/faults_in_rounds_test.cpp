// Faults among workers that send their records in rounds, and of which each hears the heartbeats of some only.
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/comm/network/dissemination.h"
#include "tests/comm/faulty_workers.h"
#include "tests/support/fault_seeds.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::fault_seeds;

constexpr int64_t kMany = 9;

class FaultsInRounds : public WorkerFaults {};

/// Workers that are no neighbours of `worker`.
std::vector<int64_t> strangers(int64_t worker) {
  const std::vector<int64_t> partners = Dissemination(kMany, worker).partners();
  const std::set<int64_t> neighbours(partners.begin(), partners.end());
  std::vector<int64_t> others;
  for (const int64_t w : all_but(worker, kMany)) {
    if (!neighbours.contains(w)) others.push_back(w);
  }
  return others;
}

TEST_P(FaultsInRounds, AreOfWorkersThatAreNotAllNeighbours) {
  for (int64_t w = 0; w < kMany; ++w) EXPECT_EQ(strangers(w).size(), 2U) << w;
}

TEST_P(FaultsInRounds, NameAFrozenWorkerOnAllOthersInTime) {
  constexpr int64_t kLostMs = 2000;
  for (const int64_t frozen : {0, 1, 5, 8}) {
    const auto started = start("calls_records", {.lost_ms = kLostMs, .workers = kMany});
    WorkerProcesses& workers = *started;
    workers.expect_all("in the middle");
    const Time when = workers.signal(frozen, SIGSTOP);
    // Worker 0 decides, and where it does not hear this worker's heartbeats, it has a fifth of the time to answer.
    expect_one_reason(workers, all_but(frozen, kMany), fmt::format("worker {} (process", frozen), when,
                      milliseconds(2 * kLostMs));
    expect_members(workers, all_but(frozen, kMany), PeerError::Noticed::kSilent, frozen, -1, "before its first step");
    workers.signal(frozen, SIGCONT);
    EXPECT_NE(workers.expect(frozen, "failed after ").text.find(fmt::format("worker {} (process", frozen)),
              std::string::npos);
    if (HasFailure()) return;
  }
}

TEST_P(FaultsInRounds, NameSeveralThatFreezeAtOnceAsOnAHostThatIsSwitchedOff) {
  constexpr int64_t kLostMs = 2000;
  for (const std::set<int64_t>& frozen : {std::set<int64_t>{0, 1, 2}, {3, 4, 5}, {1, 4, 7}}) {
    const auto started = start("calls_records", {.lost_ms = kLostMs, .workers = kMany});
    WorkerProcesses& workers = *started;
    workers.expect_all("in the middle");
    Time when;
    std::vector<int64_t> survivors;
    for (int64_t w = 0; w < kMany; ++w) {
      if (frozen.contains(w)) {
        when = workers.signal(w, SIGSTOP);
      } else {
        survivors.push_back(w);
      }
    }
    expect_one_reason(workers, survivors, "is frozen", when, milliseconds(3 * kLostMs));
    if (HasFailure()) return;
  }
}

TEST_P(FaultsInRounds, NameAKilledWorkerOnAllOthers) {
  for (int64_t seed = 0; seed < fault_seeds() + 3; ++seed) {
    const int64_t killed = (4 * seed) % kMany;
    const auto started = start(seed % 2 == 0 ? "calls_records" : "exchanges_megabytes", {.workers = kMany});
    WorkerProcesses& workers = *started;
    workers.expect_all("in the middle");
    const Time when = workers.signal(killed, SIGKILL);
    expect_one_reason(workers, all_but(killed, kMany),
                      fmt::format("worker {} (process {}", killed, workers.pid(killed)), when, seconds(3));
    expect_members(workers, all_but(killed, kMany), PeerError::Noticed::kGone, killed, -1, "before its first step");
    if (HasFailure()) return;
  }
}

TEST_P(FaultsInRounds, LetAllOthersNameTheOneThatHasNotCome) {
  const auto started = start("waits_for_worker_1", {.lost_ms = 2000, .stalled_ms = 4000, .workers = kMany});
  WorkerProcesses& workers = *started;
  for (const int64_t w : all_but(1, kMany)) {
    const std::string line = workers.expect(w, "log with age: ").text;
    EXPECT_NE(line.find("worker 1 has not come to call"), std::string::npos) << line;
    EXPECT_NE(line.find("worker 1 is in step 42, after its meeting 2, for "), std::string::npos) << line;
  }
  // Whoever finds it gone may be none of its neighbours; these say what it did.
  const Time when = workers.signal(1, SIGKILL);
  expect_one_reason(workers, all_but(1, kMany), "worker 1 was in step 42, after its meeting 2", when, seconds(3));
  expect_members(workers, all_but(1, kMany), PeerError::Noticed::kGone, 1, 42, "in step 42, after its meeting 2");
}

TEST_P(FaultsInRounds, GiveUpForTheOneThatHasNotCome) {
  const auto started = start("waits_for_worker_1", {.lost_ms = 1000, .patience_ms = 2000, .workers = kMany});
  WorkerProcesses& workers = *started;
  workers.expect_all("joined");
  expect_one_reason(workers, all_but(1, kMany), "worker 1 has not come to call", std::chrono::steady_clock::now(),
                    seconds(6));
  expect_members(workers, all_but(1, kMany), PeerError::Noticed::kAbsent, 1, 42, "in step 42, after its meeting 2");
}

WORKER_BODY(rounds_wait_for_work_of_worker_1) { wait_for_work_of_worker_1(); }

TEST_P(FaultsInRounds, AreNotThatAWorkerIsAtWorkForLongerThanThePatience) {
  const auto started = start("rounds_wait_for_work_of_worker_1",
                             {.lost_ms = 4000, .stalled_ms = 9000, .patience_ms = 3000, .workers = kMany});
  expect_patience_with_work(*started);
}

TEST_P(FaultsInRounds, GiveUpWorkThatTakesLongerThanItsLimit) {
  const auto started = start("rounds_wait_for_work_of_worker_1", {.lost_ms = 1000, .limit_ms = 2000, .workers = kMany});
  WorkerProcesses& workers = *started;
  const Time when = workers.expect(1, "works").when;
  expect_one_reason(workers, all_but(1, kMany), "the bound is .limit of that call, otherwise .timeouts.work", when,
                    seconds(8));
  expect_members(workers, all_but(1, kMany), PeerError::Noticed::kAbsent, 1, 42, kAtWork);
}

TEST_P(FaultsInRounds, TellHowAWorkerEnded) {
  using enum PeerError::Noticed;
  for (const auto& [how, words, noticed] : {std::tuple{"exit", "ended its program", kExited},
                                            {"leave", "left the run", kLeft},
                                            {"abort", "aborted the run: its data ended", kAborted},
                                            {"throw", "was ended by an exception", kException},
                                            {"crash", "is gone", kGone}}) {
    const auto started = start("ends_as_told", {.workers = kMany, .how = how});
    WorkerProcesses& workers = *started;
    const Report middle = workers.expect(1, "in the middle");
    expect_one_reason(workers, all_but(1, kMany), words, middle.when, seconds(5));
    expect_members(workers, all_but(1, kMany), noticed, 1, -1, "before its first step");
  }
}

INSTANTIATE_TEST_SUITE_P(Tls, FaultsInRounds, ::testing::Values("rounds"));

}  // namespace
}  // namespace lockstep::internal
