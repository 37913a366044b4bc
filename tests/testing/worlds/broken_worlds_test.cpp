// Broken worlds: each breaks one promise of World about what calls return, and the conformance suite names a check that
// finds it. broken_world_errors_test.cpp has those that break a promise about failures and ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/testing/worlds/broken_world.h"

namespace lockstep {
namespace {

using testing::expect_found;
using testing::From;
using testing::PassesOn;
using testing::To;
using testing::worlds_of;

class SwapsRecords final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  std::vector<std::string> agree(const std::string& mine) override {
    auto records = inner_->agree(mine);
    std::swap(records.front(), records.back());
    return records;
  }
};

class CutsRecordsAtAZero final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  std::vector<std::string> agree(const std::string& mine) override { return inner_->agree(mine.c_str()); }
};

class GivesTheRecordsOfTheRoundBefore final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  std::vector<std::string> agree(const std::string& mine) override {
    auto records = inner_->agree(mine);
    std::swap(records, before_);
    return records.empty() ? before_ : records;
  }

 private:
  std::vector<std::string> before_;
};

class DropsTheLastByte final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  void exchange(To to, From from) override {
    const std::span<std::byte> bytes = from[other()];
    const std::byte last = bytes.empty() ? std::byte{} : bytes.back();
    inner_->exchange(to, from);
    if (!bytes.empty()) bytes.back() = last;
  }
};

/// Writes something else than the message after the call.
template <class Damage>
class Damages final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  void exchange(To to, From from) override {
    inner_->exchange(to, from);
    Damage()(to, from, static_cast<std::size_t>(worker_index()), other());
  }
};

struct BeforeTheBegin {
  void operator()(To, From from, std::size_t, std::size_t other) const {
    if (!from[other].empty()) *(from[other].data() - 1) = std::byte{1};
  }
};
struct BehindTheEnd {
  void operator()(To, From from, std::size_t, std::size_t other) const {
    if (!from[other].empty()) *(from[other].data() + from[other].size()) = std::byte{1};
  }
};
struct InTheOwnEntry {
  void operator()(To, From from, std::size_t me, std::size_t) const { from[me].front() = std::byte{1}; }
};
struct InWhatIsSent {
  void operator()(To to, From, std::size_t, std::size_t other) const {
    if (!to[other].empty()) *const_cast<std::byte*>(to[other].data()) ^= std::byte{1};
  }
};

/// Writes a message once more when the next call begins.
class DeliversLate final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  void exchange(To to, From from) override {
    std::copy(message_.begin(), message_.end(), memory_.begin());
    inner_->exchange(to, from);
    memory_ = from[other()];
    message_.assign(memory_.begin(), memory_.end());
  }

 private:
  std::span<std::byte> memory_;
  std::vector<std::byte> message_;
};

/// The sizes that others give are not looked at: too little is filled up, too much is cut.
class LooksAtNoSize final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  void exchange(To to, From from) override {
    constexpr std::size_t kAll = 2 << 20;
    const auto me = static_cast<std::size_t>(worker_index());
    std::vector<std::vector<std::byte>> out(to.size(), std::vector<std::byte>(kAll));
    std::vector<std::vector<std::byte>> in(from.size(), std::vector<std::byte>(kAll));
    for (std::size_t w = 0; w < to.size(); ++w) {
      if (w != me && !to[w].empty()) std::memcpy(out[w].data(), to[w].data(), to[w].size());
    }
    inner_->exchange(std::vector<std::span<const std::byte>>(out.begin(), out.end()),
                     std::vector<std::span<std::byte>>(in.begin(), in.end()));
    for (std::size_t w = 0; w < from.size(); ++w) {
      if (w != me && !from[w].empty()) std::memcpy(from[w].data(), in[w].data(), from[w].size());
    }
  }
};

TEST(BrokenWorld, IsNoneThatOnlyPassesCallsOn) { testing::expect_world_conformance(worlds_of<PassesOn>()); }

TEST(BrokenWorld, ThatSwapsRecordsIsFound) {
  expect_found(worlds_of<SwapsRecords>(), {"AgreeGivesEveryRecordByWorker", "TheNthCallMeetsTheNthOfAllOthers"},
               {"worker 0"});
}

TEST(BrokenWorld, ThatCutsRecordsIsFound) {
  expect_found(worlds_of<CutsRecordsAtAZero>(), {"AgreeGivesEveryRecordByWorker"}, {"the size of worker"});
}

TEST(BrokenWorld, WhoseRecordsAreARoundLateIsFound) {
  expect_found(worlds_of<GivesTheRecordsOfTheRoundBefore>(), {"TheNthCallMeetsTheNthOfAllOthers"}, {"round 1"});
}

TEST(BrokenWorld, ThatDropsTheLastByteIsFound) {
  expect_found(worlds_of<DropsTheLastByte>(),
               {"ExchangeMovesMessagesOfAllSizes", "ExchangeMovesTheLargestMessages", "ExchangeMovesBytesAtAnyAddress"},
               {"0x5a"});
}

TEST(BrokenWorld, ThatWritesOutsideOfTheMessageIsFound) {
  const std::vector<std::string> names{"ExchangeMovesMessagesOfAllSizes", "ExchangeMovesBytesAtAnyAddress"};
  expect_found(worlds_of<Damages<BeforeTheBegin>>(), names, {"before what worker", "0xa5"});
  expect_found(worlds_of<Damages<BehindTheEnd>>(), names, {"after what worker", "0xa5"});
  expect_found(worlds_of<Damages<InTheOwnEntry>>(), names, {"own entry"});
  expect_found(worlds_of<Damages<InWhatIsSent>>(), names, {"sent to worker"});
}

TEST(BrokenWorld, ThatWritesAfterAnExchangeIsFound) {
  expect_found(worlds_of<DeliversLate>(), {"MemoryIsTheCallersAgainWhenAnExchangeReturns"},
               {"used for another purpose"});
}

TEST(BrokenWorld, ThatLooksAtNoSizeIsFound) {
  expect_found(worlds_of<LooksAtNoSize>(), {"DifferentSizesEndTheRun"}, {"threw nothing"});
}

TEST(BrokenWorld, IsReportedWithEachCheckThatFailed) {
  const std::string text =
      testing::message_from<DivergenceError>([] { testing::expect_world_conformance(worlds_of<SwapsRecords>()); });
  for (const char* part :
       {"of 41 checks of the conformance suite failed", "\n  AgreeGivesEveryRecordByWorker_2Workers: 2 workers: ",
        "\n  TheNthCallMeetsTheNthOfAllOthers_2Workers: ", "begin with the first"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n  in: " << text;
  }
  EXPECT_EQ(text.find("ExchangeMoves"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
