// Several workers save one checkpoint, and any number of them restores it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/checkpoint/model_files.h"
#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::ModelFiles;
using testing::run_workers;
using testing::Training;
using testing::WorkersCase;

/// The values of all replicas, as a run of one worker has them.
std::string whole_digest(const Training& training, Strategy& strategy) {
  const internal::Image image = internal::capture(strategy, internal::Tracked());
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const auto& one : image.tensors) named.emplace_back(one.name, one.value);
  return sha256_of(named) + std::to_string(training.best);
}

class WorkersCheckpoint : public ::testing::Test {
 protected:
  WorkersCheckpoint() : folder_(fs::temp_directory_path() / ("lockstep-workers-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
  }
  ~WorkersCheckpoint() override { fs::remove_all(folder_); }
  const fs::path folder_;
};

TEST_F(WorkersCheckpoint, AnyNumberOfWorkersSavesAndAnyOtherRestores) {
  const auto digest_after = [&](int64_t workers, int first, int more, bool restores) {
    return run_workers({.workers = workers, .replicas = 4}, [&](Strategy& strategy) {
      Training training(strategy);
      if (restores) {
        training.steps(1);
        EXPECT_EQ(training.checkpoint().restore(folder_ / "one").step, first);
      } else {
        training.steps(first);
      }
      if (!restores && first == 3) training.checkpoint().save(folder_ / "one");
      training.steps(more);
      return whole_digest(training, strategy);
    });
  };
  const std::string whole = digest_after(1, 3, 3, false).front();
  for (const int64_t saved_by : {1, 2, 3}) {
    fs::remove_all(folder_);
    EXPECT_EQ(digest_after(saved_by, 3, 3, false).front(), whole);
    for (const int64_t restored_by : {1, 2, 4}) {
      for (const std::string& digest : digest_after(restored_by, 3, 3, true)) {
        EXPECT_EQ(digest, whole) << "saved by " << saved_by << ", restored by " << restored_by;
      }
    }
  }
}

TEST_F(WorkersCheckpoint, AnErrorOfOneIsAnErrorOfAllAndNothingChanges) {
  ModelFiles files;  // the chief's disk
  run_workers({.workers = 2, .replicas = 4}, [&](Strategy& strategy) {
    Training training(strategy);
    internal::CheckpointAccess::set_files(training.checkpoint(), files);
    CheckpointManager manager(training.checkpoint(), {.directory = "/runs", .all_workers_write = false});
    training.steps(1);
    manager.save();
    manager.wait();
    if (strategy.is_chief()) files.fail_at(8, "No space left on device");
    training.steps(1);
    manager.save();
    const auto fails = [&](auto&& call) {
      if (strategy.is_chief()) {
        testing::expect_error<DataError>(call, "LS-FILE", {"No space left on device"});
      } else {
        testing::expect_error<PeerError>(call, "LS-PEER-FAILED", {"No space left on device"});
      }
    };
    fails([&] { manager.wait(); });
    EXPECT_EQ(manager.latest(), fs::path("/runs/step-0000000001"));
    manager.save();  // the run goes on
    manager.wait();
    EXPECT_EQ(manager.latest(), fs::path("/runs/step-0000000002"));

    // One worker's program has a value that refuses what it is given.
    int value = 1;
    Checkpoint checkpoint(strategy);
    internal::CheckpointAccess::set_files(checkpoint, files);
    checkpoint.track(
        "value", [&] { return nlohmann::json(value); },
        [&](const nlohmann::json& json) {
          if (json == 2 && !strategy.is_chief()) throw UsageError("LS-OPTION", "refused here", "nothing");
          value = json.get<int>();
        });
    value = 2;
    checkpoint.save("two");
    value = 3;
    training.steps(1);
    const std::string before = whole_digest(training, strategy);
    const auto restore = [&] { checkpoint.restore("two"); };
    if (strategy.is_chief()) {
      testing::expect_error<PeerError>(restore, "LS-PEER-FAILED", {"worker 1", "refused here"});
    } else {
      testing::expect_error<UsageError>(restore, "LS-OPTION", {"refused here"});
    }
    EXPECT_EQ(value, 3);
    EXPECT_EQ(whole_digest(training, strategy), before);
    return 0;
  });
}

TEST_F(WorkersCheckpoint, OnlyWhatIsRestoredIsReadAndOnceForAll) {
  ModelFiles files;
  constexpr int64_t kSize = 1000;
  const auto with = [&](int64_t workers, const std::vector<std::string>& names, const auto& use) {
    const uint64_t before = files.bytes_read();
    run_workers({.workers = workers, .replicas = 2}, [&](Strategy& strategy) {
      std::vector<Variable> variables;
      for (const std::string& name : names) {
        variables.push_back(strategy.make_variable(torch::full({kSize}, strategy.num_workers()), {.name = name}));
      }
      Checkpoint checkpoint(strategy);
      internal::CheckpointAccess::set_files(checkpoint, files);
      use(checkpoint, variables);
      return 0;
    });
    return static_cast<int64_t>(files.bytes_read() - before);
  };
  with(1, {"head", "trunk"}, [](const Checkpoint& checkpoint, const auto&) { checkpoint.save("c"); });
  const auto restored = [&](int64_t workers, const std::vector<std::string>& names) {
    return with(workers, names, [](const Checkpoint& checkpoint, const std::vector<Variable>& variables) {
      const RestoreInfo info = checkpoint.restore("c", {.allow_unexpected = true});
      EXPECT_EQ(info.unexpected.size(), 2 - variables.size());
      for (const Variable& one : variables) EXPECT_TRUE(one.read().equal(torch::full({kSize}, 1)));
    });
  };
  const int64_t heads = restored(1, {});
  for (const int64_t workers : {1, 2}) {
    EXPECT_EQ(restored(workers, {"trunk"}) - heads, 8 * kSize) << workers << " workers";
    EXPECT_EQ(restored(workers, {"head", "trunk"}) - heads, 2 * 8 * kSize) << workers << " workers";
  }
}

TEST_F(WorkersCheckpoint, ACheckpointThatDoesNotFitIsRefusedOnAll) {
  testing::OneTraining run(3, 1, 3);
  run.training.checkpoint().save(folder_ / "one");
  run_workers({.workers = 2, .replicas = 4}, [&](Strategy& strategy) {
    Training training(strategy);
    testing::expect_error<UsageError>([&] { training.checkpoint().restore(folder_ / "one"); }, "LS-CHECKPOINT-MISFIT",
                                      {"3", "4"});
    EXPECT_EQ(training.checkpoint().restore(folder_ / "one", {.allow_other_replicas = true}).step, 0);
    training.steps(1);
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
