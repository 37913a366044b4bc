// Following a run's checkpoints: which one is read, and that it stays while it is read.
#include "lockstep/checkpoint/follow_checkpoints.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/core/error.h"
#include "tests/checkpoint/training.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::CheckpointFollower;
using internal::CheckpointWatch;
using internal::FoundCheckpoint;
using testing::OneTraining;
using testing::ScratchFolder;

/// Whole checkpoints of these sequences, each of ten times the step.
std::vector<FoundCheckpoint> whole(const std::vector<uint64_t>& sequences) {
  std::vector<FoundCheckpoint> found;
  for (const uint64_t one : sequences) {
    found.push_back({.step = static_cast<int64_t>(10 * one), .sequence = one, .has_manifest = true});
  }
  return found;
}

/// The sequence of the next one, which is read; 0 where there is none.
uint64_t read_next(CheckpointWatch& watch, const std::vector<FoundCheckpoint>& found) {
  const FoundCheckpoint* const next = watch.next(found);
  if (next == nullptr) return 0;
  watch.was_read(*next);
  return next->sequence;
}

TEST(CheckpointWatch, GivesEachOnceAndOnlyTheNewestWhereItIsBehind) {
  CheckpointWatch watch;
  EXPECT_EQ(read_next(watch, {}), 0u);
  EXPECT_EQ(read_next(watch, whole({1})), 1u);
  EXPECT_EQ(read_next(watch, whole({1})), 0u);
  EXPECT_EQ(read_next(watch, whole({1, 2, 3, 4})), 4u);
  EXPECT_EQ(read_next(watch, whole({1, 2, 3, 4})), 0u) << "2 and 3 are passed over";
  EXPECT_EQ(read_next(watch, whole({2, 3})), 0u) << "the newest one was removed";
}

TEST(CheckpointWatch, BeginsWithTheNewestOfThoseThatAreThere) {
  CheckpointWatch watch;
  EXPECT_EQ(read_next(watch, whole({5, 6, 7})), 7u);
  EXPECT_EQ(read_next(watch, whole({5, 6, 7})), 0u);
}

TEST(CheckpointWatch, TakesAStepThatIsSavedAgainAfterARestore) {
  CheckpointWatch watch;
  std::vector<FoundCheckpoint> found = whole({1, 2});
  EXPECT_EQ(read_next(watch, found), 2u);
  found.push_back({.step = 10, .sequence = 3, .has_manifest = true});
  EXPECT_EQ(read_next(watch, found), 3u);
}

TEST(CheckpointWatch, TakesTheNextOneWhereTheNewestCannotBeRead) {
  CheckpointWatch watch;
  EXPECT_EQ(read_next(watch, whole({1})), 1u);
  const auto found = whole({1, 2, 3});
  watch.is_unreadable(*watch.next(found));
  EXPECT_EQ(read_next(watch, found), 2u);
  watch.is_unreadable(*watch.next(found));
  EXPECT_EQ(read_next(watch, found), 0u) << "not 1 again";
}

TEST(CheckpointWatch, AFolderThatWasEmptiedBeginsAnew) {
  CheckpointWatch watch;
  EXPECT_EQ(read_next(watch, whole({8})), 8u);
  EXPECT_EQ(read_next(watch, {}), 0u);
  EXPECT_EQ(read_next(watch, whole({1})), 1u);
}

class FollowCheckpoints : public ScratchFolder {
 protected:
  static bool is_there(const fs::path& checkpoint) { return fs::exists(checkpoint / "manifest.json"); }
  static void nothing(const fs::path& /*path*/) {}
};

TEST_F(FollowCheckpoints, TheOneThatIsReadStaysUntilItWasRead) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_, .keep = 1, .async = false});
  CheckpointFollower follower(internal::host_files(), folder_);
  EXPECT_FALSE(follower.look(nothing, nothing)) << "there is none yet";
  run.training.steps(1);
  const fs::path first = manager.save();
  std::vector<fs::path> used;
  EXPECT_TRUE(follower.look(nothing, [&](const fs::path& path) {
    used.push_back(path);
    for (int i = 0; i < 2; ++i) {
      run.training.steps(1);
      manager.save();
    }
    EXPECT_TRUE(is_there(path)) << "two newer ones were saved, and one stays";
  }));
  EXPECT_TRUE(follower.look(nothing, [&](const fs::path& path) { used.push_back(path); }));
  EXPECT_FALSE(follower.look(nothing, nothing));
  EXPECT_EQ(used, (std::vector<fs::path>{first, folder_ / "step-0000000003"}));
  run.training.steps(1);
  manager.save();
  EXPECT_FALSE(is_there(first)) << "it goes after a later save";
  std::set<std::string> left;
  for (const auto& one : fs::directory_iterator(folder_)) left.insert(one.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{".lock", "step-0000000004"}));
  EXPECT_TRUE(follower.is_held());
}

TEST_F(FollowCheckpoints, ADamagedOneIsPassedOverAndAnErrorOfItsUserIsNot) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_, .async = false});
  for (int i = 0; i < 2; ++i) {
    run.training.steps(1);
    manager.save();
  }
  CheckpointFollower follower(internal::host_files(), folder_);
  std::vector<std::string> used;
  const auto restore = [](const fs::path& path) {
    if (path.filename() == "step-0000000002") throw DataError("LS-CHECKPOINT-DAMAGED", "a piece is damaged", "none");
  };
  const auto use = [&](const fs::path& path) { used.push_back(path.filename().string()); };
  while (follower.look(restore, use)) continue;
  EXPECT_EQ(used, std::vector<std::string>{"step-0000000001"});
  run.training.steps(1);
  manager.save();
  EXPECT_THROW(follower.look(restore, [](const fs::path&) { throw DataError("LS-FILE", "the user's own", "none"); }),
               DataError);
}

TEST_F(FollowCheckpoints, TheFolderIsHeldAsLongAsItsRunLives) {
  const CheckpointFollower follower(internal::host_files(), folder_);
  EXPECT_FALSE(follower.is_held());
  {
    OneTraining run;
    CheckpointManager manager(run.training.checkpoint(), {.directory = folder_});
    EXPECT_FALSE(follower.is_held());
    manager.claim();
    EXPECT_TRUE(follower.is_held());
  }
  EXPECT_FALSE(follower.is_held());
}

TEST_F(FollowCheckpoints, ManagersAreThoseOfTheStrategyThatLive) {
  OneTraining run;
  OneTraining other;
  const Checkpoint checkpoint = run.training.checkpoint();
  EXPECT_TRUE(internal::managers_of(checkpoint.strategy()).empty());
  const CheckpointManager of_other(other.training.checkpoint(), {.directory = folder_});
  {
    const CheckpointManager a(checkpoint, {.directory = folder_});
    const CheckpointManager b(checkpoint, {.directory = folder_ / "b"});
    EXPECT_EQ(internal::managers_of(checkpoint.strategy()), (std::vector<const CheckpointManager*>{&a, &b}));
  }
  EXPECT_TRUE(internal::managers_of(checkpoint.strategy()).empty());
}

}  // namespace
}  // namespace lockstep
