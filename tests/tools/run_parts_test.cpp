// The parts of `lockstep run` that decide and do nothing.
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <numeric>

#include "tests/support/fake_root.h"
#include "tools/run/core_shares.h"
#include "tools/run/worker/lines.h"
#include "tools/run/worker/worker_end.h"

namespace {

using lockstep::testing::FakeRoot;
using lockstep::tools::core_shares;
using lockstep::tools::exit_code_of;
using lockstep::tools::is_restartable;
using lockstep::tools::LastLines;
using lockstep::tools::LineCutter;
using lockstep::tools::pause_before;
using lockstep::tools::was_killed_from_outside;
using lockstep::tools::WorkerEnd;

TEST(CoreShares, AreDisjointBlocksThatDifferByAtMostOne) {
  for (int count = 1; count < 20; ++count) {
    std::vector<int> cores(static_cast<std::size_t>(count));
    std::iota(cores.begin(), cores.end(), 4);
    for (int workers = 1; workers <= count; ++workers) {
      std::vector<int> all;
      for (const auto& share : core_shares(cores, workers)) {
        EXPECT_GE(share.size(), cores.size() / static_cast<std::size_t>(workers));
        EXPECT_LE(share.size(), cores.size() / static_cast<std::size_t>(workers) + 1);
        all.insert(all.end(), share.begin(), share.end());
      }
      EXPECT_EQ(all, cores) << workers;
    }
  }
}

TEST(CoreShares, AreSharedInTurnWhereThereAreMoreWorkers) {
  EXPECT_EQ(core_shares({2, 5}, 5), (std::vector<std::vector<int>>{{2}, {5}, {2}, {5}, {2}}));
  EXPECT_EQ(core_shares({}, 2), (std::vector<std::vector<int>>(2)));
}

std::vector<std::string> cut(const std::vector<std::string>& reads) {
  std::vector<std::string> pieces;
  const auto receive = [&](std::string_view piece) { pieces.emplace_back(piece); };
  LineCutter cutter;
  for (const std::string& bytes : reads) cutter.add(bytes, receive);
  cutter.finish(receive);
  return pieces;
}

TEST(LineCutter, GivesWholeLinesWhateverTheReadsAre) {
  const std::vector<std::string> lines = {"a\n", "\n", "bc\n", "d"};
  EXPECT_EQ(cut({"a\n\nbc\nd"}), lines);
  EXPECT_EQ(cut({"a", "\n", "\nb", "c\nd"}), lines);
  EXPECT_EQ(cut({}), std::vector<std::string>());
}

TEST(LineCutter, KeepsNoMoreThanItsLongest) {
  const std::string longest(LineCutter::kLongest, 'x');
  EXPECT_EQ(cut({longest + longest + "y\nz\n"}), (std::vector<std::string>{longest, longest, "y\n", "z\n"}));
  EXPECT_EQ(cut({longest.substr(1), "xx\n"}), (std::vector<std::string>{longest, "x\n"}));
}

TEST(LastLines, KeepsTheLastOfThemCut) {
  LastLines last;
  for (int i = 0; i < 30; ++i) last.add(std::to_string(i) + "\n");
  ASSERT_EQ(last.lines().size(), LastLines::kLines);
  EXPECT_EQ(last.lines().front(), "10");
  EXPECT_EQ(last.lines().back(), "29");
  last.add(std::string(100000, 'x') + "\n");
  EXPECT_EQ(last.lines().back().size(), LastLines::kLongest);
}

TEST(WorkerEnd, PausesDoubleUpToHalfAMinute) {
  for (const auto& [restart, seconds] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {5, 16}, {6, 30}, {1000, 30}}) {
    EXPECT_EQ(pause_before(restart, 1), std::chrono::seconds(seconds)) << restart;
  }
  EXPECT_EQ(pause_before(1000000, 0), std::chrono::seconds(0));
}

TEST(WorkerEnd, GivesTheCodesOfAShell) {
  using Kind = WorkerEnd::Kind;
  EXPECT_EQ(exit_code_of({0, 1, Kind::kExited, 7, 0}), 7);
  EXPECT_EQ(exit_code_of({0, 1, Kind::kSignalled, SIGKILL, 0}), 137);
  EXPECT_EQ(exit_code_of({0, 1, Kind::kNotStarted, ENOENT, 0}), 127);
  EXPECT_EQ(exit_code_of({0, 1, Kind::kNotStarted, EACCES, 0}), 126);
  EXPECT_FALSE(is_restartable({0, 1, Kind::kNotStarted, ENOENT, 0}));
  EXPECT_FALSE(is_restartable({0, 1, Kind::kExited, 2, 0}));
  EXPECT_FALSE(is_restartable({0, 1, Kind::kExited, 65, 0}));
  EXPECT_FALSE(is_restartable({0, 1, Kind::kExited, 78, 0}));
  EXPECT_TRUE(is_restartable({0, 1, Kind::kExited, 75, 0}));
  EXPECT_TRUE(is_restartable({0, 1, Kind::kExited, 3, 0}));
  EXPECT_TRUE(is_restartable({0, 1, Kind::kSignalled, SIGSEGV, 0}));
  EXPECT_TRUE(was_killed_from_outside({0, 1, Kind::kSignalled, SIGSEGV, 0}));
  EXPECT_FALSE(was_killed_from_outside({0, 1, Kind::kSignalled, SIGABRT, 0}));
}

}  // namespace
