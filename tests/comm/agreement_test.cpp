// Proposals of workers: how they become bytes and back, and what follows from them.
#include "lockstep/comm/agreement.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/rounds.h"
#include "lockstep/comm/thread_workers.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

Proposal meets(const std::string& call, uint64_t signature = 1) {
  return {.call = call, .name = "w", .signature = signature, .step = 4, .detail = call + "(w)"};
}

TEST(Agreement, GoesOnWhereAllMakeTheSameCall) {
  EXPECT_EQ(agreement_of(std::vector{meets("all_reduce"), meets("all_reduce")}).outcome, Agreement::Outcome::kGoOn);
  EXPECT_EQ(agreement_of(std::vector{meets("all_reduce")}).outcome, Agreement::Outcome::kGoOn);
}

TEST(Agreement, EndsWhereAllHaveEnded) {
  const Proposal ended{.state = Proposal::State::kEnded, .step = 4};
  EXPECT_EQ(agreement_of(std::vector{ended, ended, ended}).outcome, Agreement::Outcome::kEnd);
}

TEST(Agreement, FailsWithTheLowestWorkerThatFailedWhateverTheOthersDo) {
  Proposal failed{.state = Proposal::State::kFailed, .replica = 5};
  const Agreement agreement = agreement_of(std::vector{meets("all_reduce"), failed, meets("broadcast"), failed});
  EXPECT_EQ(agreement.outcome, Agreement::Outcome::kFailed);
  EXPECT_EQ(agreement.worker, 1);
}

TEST(Agreement, DiffersInEachPartThatMustBeEqualAndNamesEveryWorker) {
  const Proposal one = meets("all_reduce");
  std::vector<Proposal> others(5, one);
  others[0].call = "broadcast";
  others[1].name = "b";
  others[2].signature = 2;
  others[3].step = 5;
  others[4].state = Proposal::State::kEnded;
  for (const Proposal& other : others) {
    const Agreement agreement = agreement_of(std::vector{one, one, other});
    EXPECT_EQ(agreement.outcome, Agreement::Outcome::kDiffers);
    for (const char* value : {"all_reduce(w)", "2"}) {
      EXPECT_TRUE(lockstep::testing::has_value(agreement.who_did_what, value)) << agreement.who_did_what;
    }
  }
}

TEST(Agreement, SaysWhereEachWorkerMadeItsCallAndDoesNotCompareThat) {
  std::vector<Proposal> all(3, meets("all_reduce"));
  all[0].places = {"train.cpp:88", "train.cpp:88"};
  all[1].places = {"train.cpp:91"};
  EXPECT_EQ(agreement_of(all).outcome, Agreement::Outcome::kGoOn);
  all[1].call = all[1].detail = "broadcast";
  EXPECT_EQ(agreement_of(all).who_did_what,
            "worker 0 came to all_reduce(w) at train.cpp:88 in step 4, worker 1 came to broadcast at train.cpp:91 in "
            "step 4, worker 2 came to all_reduce(w) in step 4");
  all[1] = meets("all_reduce", 2);
  EXPECT_EQ(agreement_of(all).who_did_what,
            "worker 0 came to all_reduce(w) at train.cpp:88 in step 4, where all of its arguments have the digest "
            "0000000000000001, worker 1 came to all_reduce(w) in step 4, where all of its arguments have the digest "
            "0000000000000002, worker 2 came to all_reduce(w) in step 4, where all of its arguments have the digest "
            "0000000000000001");
}

TEST(Proposal, ComesBackAsItWasSent) {
  Proposal proposal{.state = Proposal::State::kFailed,
                    .call = "Strategy::reduce",
                    .name = std::string("a\0b", 3),
                    .signature = ~uint64_t{0},
                    .step = -1,
                    .replica = 12,
                    .detail = "it \n failed",
                    .places = {"train.cpp:88", "", std::string("\0:1", 3)},
                    .data = std::string("0\0f", 3)};
  EXPECT_EQ(decode(encode(proposal), 0), proposal);
}

TEST(Proposal, CutsALongDetail) {
  EXPECT_EQ(decode(encode({.detail = std::string(100000, 'x')}), 0).detail.size(), kLongestDetail);
}

TEST(Proposal, ThatIsCutOrChangedAnywhereIsReadOrRefusedAndNamesTheWorker) {
  const std::string whole = encode(meets("all_reduce"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(std::to_string(size) + " of " + std::to_string(whole.size()) + " bytes");
    lockstep::testing::expect_error<PeerError>([&] { decode(whole.substr(0, size), 3); }, "LS-PEER-MESSAGE",
                                               {"worker 3"});
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = whole;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      decode(bytes, 0);  // any value of a word is a value
    } catch (const PeerError&) {
    }
  }
  lockstep::testing::expect_error<PeerError>([&] { decode(whole + "x", 0); }, "LS-PEER-MESSAGE", {"worker 0"});
}

TEST(AgreeOnCall, GivesWhatEachWorkerTells) {
  ThreadWorkers workers(3);
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < 3; ++w) {
    threads.emplace_back([w, world = workers.world(w)] {
      Rounds rounds(world);
      const auto all =
          agree_on_call(rounds, {.call = "a read"}, [&](Proposal& mine) { mine.data = std::to_string(w); });
      ASSERT_EQ(all.size(), 3u);
      for (std::size_t other = 0; other < 3; ++other) EXPECT_EQ(all[other].data, std::to_string(other));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AgreeOnCall, ThrowsTheWorkersOwnErrorWhereTheOthersAreGone) {
  ThreadWorkers workers(2);
  Rounds rounds(workers.world(0));
  workers.world(1).reset();
  const auto fails = [](Proposal&) { throw UsageError("LS-OPTION", "the option is wrong", "correct it"); };
  lockstep::testing::expect_error<UsageError>([&] { agree_on_call(rounds, {.call = "a read"}, fails); }, "LS-OPTION");
  rounds.begin();
  const auto holds = [](Proposal&) {};
  lockstep::testing::expect_error<PeerError>([&] { agree_on_call(rounds, {.call = "a read"}, holds); }, "LS-PEER-LOST",
                                             {"worker 1"});
}

}  // namespace
}  // namespace lockstep::internal
