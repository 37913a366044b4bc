// A run that goes on from a checkpoint has the bits of the run that never stopped.
#include "lockstep/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/folder/pieces.h"
#include "lockstep/variable/variable_state.h"
#include "tests/checkpoint/model_files.h"
#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::expect_error;
using testing::OneTraining;
using testing::Training;

class CheckpointTest : public testing::ScratchFolder {};

TEST_F(CheckpointTest, ARestoredRunGoesOnWithTheBitsOfTheOneThatNeverStopped) {
  OneTraining whole;
  whole.training.steps(11);
  for (const int stop : {0, 1, 4, 5, 9}) {
    OneTraining first;
    first.training.steps(stop);
    first.training.checkpoint().save(path("one"));
    OneTraining second;
    second.training.steps(2);  // what it did before does not matter
    const RestoreInfo info = second.training.checkpoint().restore(path("one"));
    EXPECT_EQ(info.step, stop);
    EXPECT_TRUE(info.missing.empty());
    EXPECT_TRUE(info.unexpected.empty());
    EXPECT_EQ(second.training.digest(), first.training.digest());
    first.training.steps(11 - stop);
    second.training.steps(11 - stop);
    EXPECT_EQ(second.training.digest(), first.training.digest()) << stop;
    EXPECT_EQ(second.training.digest(), whole.training.digest()) << stop;
  }
}

// A named stream, one of the strategy's own items, and a tracked one.
TEST_F(CheckpointTest, StreamsGoOnAtTheVeryNextSample) {
  struct Run {
    Run() { checkpoint.track("tracked", tracked); }
    static data::Stream stream() {
      return data::from_dataset(data::from_tensors(torch::arange(23).to(torch::kFloat), torch::zeros({23}))).shuffle(5);
    }
    /// The samples of the next steps of both.
    std::vector<float> next(int64_t steps) {
      std::vector<float> seen;
      for (const DistributedDataset& one : {named, tracked}) {
        one.seek(one.cursor());
        int64_t left = steps;
        for (const auto& batch : one.epoch(one.cursor().epoch)) {
          for (const Batch& part : batch) {
            for (int64_t i = 0; i < part.size(); ++i) seen.push_back(part.input[i].item<float>());
          }
          if (--left == 0) break;
        }
      }
      return seen;
    }
    MirroredStrategy strategy{{.devices = {"cpu:0"}, .replicas = 2, .seed = 3}};
    DistributedDataset named = strategy.distribute(stream(), {.global_batch = 4, .name = "named"});
    DistributedDataset tracked = strategy.distribute(stream(), {.global_batch = 3});
    Checkpoint checkpoint{strategy};
  };
  for (const int64_t stop : {1, 3}) {
    Run first;
    first.next(stop);
    first.checkpoint.save(path("streams"));
    Run second;
    second.checkpoint.restore(path("streams"));
    EXPECT_EQ(second.named.cursor(), first.named.cursor());
    EXPECT_EQ(second.tracked.cursor(), first.tracked.cursor());
    EXPECT_EQ(second.next(2), first.next(2)) << stop;
  }
  Run run;
  data::Cursor cut = run.tracked.cursor();
  cut.position = 3;
  expect_error<UsageError>([&] { run.tracked.seek(cut); }, "LS-STATE-MISFIT", {"position 3"});
}

TEST_F(CheckpointTest, AMergeFunctionIsNotOutsideOfSteps) {
  OneTraining run;
  const Checkpoint& checkpoint = run.training.checkpoint();
  checkpoint.save(path("one"));
  const std::string digest = run.training.digest();
  const auto in_merge = [&](const auto& call) {
    run.strategy.run([&](ReplicaContext& ctx) {
      ctx.merge_call([&](Strategy&) {
        call();
        return 0;
      });
    });
  };
  expect_error<ReplicaError>([&] { in_merge([&] { checkpoint.save(path("two")); }); }, "LS-REPLICA",
                             {"Checkpoint::save", "merge_call"});
  expect_error<ReplicaError>([&] { in_merge([&] { checkpoint.restore(path("one")); }); }, "LS-REPLICA",
                             {"Checkpoint::restore", "merge_call"});
  EXPECT_FALSE(fs::exists(path("two")));
  EXPECT_EQ(run.training.digest(), digest);

  MirroredStrategy bare({.devices = testing::lanes(1), .replicas = 2});  // it has no variables
  const Checkpoint of_bare(bare);
  expect_error<ReplicaError>(
      [&] {
        bare.run([&](ReplicaContext& ctx) {
          ctx.merge_call([&](Strategy&) {
            of_bare.save(path("two"));
            return 0;
          });
        });
      },
      "LS-REPLICA", {"Checkpoint::save", "merge_call"});
  EXPECT_FALSE(fs::exists(path("two")));
}

TEST_F(CheckpointTest, LanesCopiesAndStrategiesMayBeOthers) {
  OneTraining first(4, 1);
  first.training.steps(4);
  first.training.checkpoint().save(path("one"));
  // Each goes on from what the one before has saved.
  const auto goes_on = [&](Strategy& strategy, const char* what) {
    first.training.steps(2);
    Training next(strategy);
    next.checkpoint().restore(path("one"));
    next.steps(2);
    EXPECT_EQ(next.digest(), first.training.digest()) << what;
    next.checkpoint().save(path("one"));
  };
  MirroredStrategy two_lanes({.devices = testing::lanes(2), .replicas = 4, .seed = 5});
  goes_on(two_lanes, "two lanes");
  MirroredStrategy copies({.devices = testing::lanes(1), .replicas = 4, .copies = Copies::kPerReplica, .seed = 5});
  goes_on(copies, "a copy for each replica");
  CentralStorageStrategy central({.devices = testing::lanes(1), .replicas = 4, .seed = 5});
  goes_on(central, "central storage");
  MirroredStrategy back({.devices = testing::lanes(1), .replicas = 4, .seed = 5});
  goes_on(back, "mirrored again");
}

TEST_F(CheckpointTest, OneDeviceAndOneReplicaAreTheSame) {
  OneTraining first(1);
  first.training.steps(3);
  first.training.checkpoint().save(path("one"));
  first.training.steps(3);
  OneDeviceStrategy strategy({.seed = 5});
  Training second(strategy);
  second.checkpoint().restore(path("one"));
  second.steps(3);
  EXPECT_EQ(second.digest(), first.training.digest());
}

TEST_F(CheckpointTest, ASaveIntoTheSameFolderReplacesTheOneBefore) {
  OneTraining run;
  for (int i = 0; i < 3; ++i) {
    run.training.steps(1);
    run.training.checkpoint().save(path("one"));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(path("one")), fs::directory_iterator()), 4) << "manifest and 3 files";
  OneTraining second;
  EXPECT_EQ(second.training.checkpoint().restore(path("one")).step, 3);
  EXPECT_EQ(second.training.digest(), run.training.digest());
}

TEST_F(CheckpointTest, AnAverageThatStandsInIsNotSavedAsTheVariable) {
  OneTraining run;
  run.training.steps(3);
  run.training.checkpoint().save(path("before"));
  OneTraining second;
  const auto average = second.strategy.make_moving_average(second.training.model(), {.name = "more"});
  second.training.checkpoint().restore(path("before"), {.allow_missing = true});
  const std::string digest = second.training.digest();
  {
    const SwapScope scope = average.swap();
    second.training.checkpoint().save(path("swapped"));
    expect_error<UsageError>([&] { second.training.checkpoint().restore(path("swapped")); }, "LS-AVERAGE-SWAPPED");
  }
  EXPECT_EQ(second.training.digest(), digest) << "the failed restore changed nothing";
  second.training.checkpoint().restore(path("swapped"));
  EXPECT_EQ(second.training.digest(), digest);
}

TEST_F(CheckpointTest, EverythingThatDoesNotFitIsListedAtOnceAndNothingChanges) {
  OneTraining run;
  run.training.steps(2);
  run.strategy.make_variable(torch::zeros({2}), {.name = "gone"});
  const Variable kept = run.strategy.make_variable(torch::zeros({2}), {.name = "old"});
  run.training.checkpoint().save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 3, .seed = 6});
  Training other(strategy, 7);
  const Variable added = strategy.make_variable(torch::zeros({2}), {.name = "added"});
  other.steps(1);
  const std::string before = other.digest();
  expect_error<UsageError>([&] { other.checkpoint().restore(path("one")); }, "LS-CHECKPOINT-MISFIT",
                           {"added", "old", "model.0.weight", "Float [6, 3]", "Float [7, 3]", "seed is 5", "6 here"});
  EXPECT_EQ(other.digest(), before);
  MirroredStrategy four({.devices = testing::lanes(1), .replicas = 4, .seed = 5});
  Training of_four(four);
  expect_error<UsageError>([&] { of_four.checkpoint().restore(path("one")); }, "LS-CHECKPOINT-MISFIT", {"3", "4"});
}

TEST_F(CheckpointTest, MissingAndUnexpectedNamesAreReportedWhereTheyAreAllowed) {
  OneTraining run;
  run.training.steps(2);
  const Variable old = run.strategy.make_variable(torch::zeros({2}), {.name = "old"});
  run.training.checkpoint().save(path("one"));
  OneTraining second;
  const Variable added = second.strategy.make_variable(torch::ones({2}), {.name = "added"});
  const RestoreInfo info =
      second.training.checkpoint().restore(path("one"), {.allow_missing = true, .allow_unexpected = true});
  EXPECT_EQ(info.missing, std::vector<std::string>{"added"});
  EXPECT_EQ(info.unexpected, std::vector<std::string>{"old"});
  EXPECT_TRUE(added.read().equal(torch::ones({2})));
}

TEST_F(CheckpointTest, ATrunkIsRestoredByPattern) {
  OneTraining run;
  run.training.steps(2);
  run.training.checkpoint().save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 2, .seed = 9});
  Training other(strategy);
  const auto head = other.model().state().at("3.weight");
  const RestoreInfo info = other.checkpoint().restore(path("one"), {.only = {"model.0.*", "model.1.running_???"}});
  EXPECT_EQ(info.step, 2);
  EXPECT_EQ(strategy.step(), 0);
  EXPECT_TRUE(other.model().state().at("0.weight").equal(run.training.model().state().at("0.weight")));
  EXPECT_TRUE(other.model().state().at("3.weight").equal(head));
}

TEST_F(CheckpointTest, OnlyWhatIsRestoredIsRead) {
  testing::ModelFiles files;
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 2});
  const auto large = static_cast<int64_t>(internal::kPieceBytes / sizeof(float)) + 10;
  const Variable trunk = strategy.make_variable(torch::ones({large}), {.name = "trunk"});
  const Variable head = strategy.make_variable(torch::ones({large}), {.name = "head"});
  const Variable seen = strategy.make_variable(
      torch::ones({500}),
      {.name = "seen", .synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kMean});
  Checkpoint checkpoint(strategy);
  internal::CheckpointAccess::set_files(checkpoint, files);
  checkpoint.track(
      "note", [] { return std::string("7"); }, [](const std::string&) {});
  checkpoint.save("c");
  const auto bytes_of = [&](const Checkpoint& program, const RestoreOptions& options) {
    const uint64_t before = files.bytes_read();
    program.restore("c", options);
    return static_cast<int64_t>(files.bytes_read() - before);
  };
  // The manifest and the headers are read in any case.
  const int64_t heads = bytes_of(checkpoint, {.only = {"note"}});
  EXPECT_EQ(bytes_of(checkpoint, {.only = {"tr*k"}}) - heads, 4 * large);
  EXPECT_EQ(bytes_of(checkpoint, {.only = {"seen"}}) - heads, 2 * 4 * 500) << "of both replicas";
  EXPECT_EQ(bytes_of(checkpoint, {}) - heads, 2 * 4 * large + 2 * 4 * 500);

  MirroredStrategy other({.devices = testing::lanes(1), .replicas = 2});
  const Variable here = other.make_variable(torch::zeros({large}), {.name = "trunk"});
  Checkpoint part(other);
  internal::CheckpointAccess::set_files(part, files);
  EXPECT_EQ(bytes_of(part, {.allow_unexpected = true}) - heads, 4 * large);
  EXPECT_TRUE(here.read().equal(trunk.read()));
  const RestoreInfo info = part.restore("c", {.allow_unexpected = true});
  EXPECT_EQ(info.unexpected, (std::vector<std::string>{"head", "seen", "note"}));
  expect_error<UsageError>([&] { part.restore("c"); }, "LS-CHECKPOINT-MISFIT", {"3 unexpected: head, seen, note"});
}

TEST_F(CheckpointTest, AnotherNumberOfReplicasIsAnOption) {
  OneTraining run(3);
  run.training.steps(4);
  run.training.checkpoint().save(path("one"));
  for (const int64_t replicas : {1, 2, 5}) {
    OneTraining second(replicas);
    EXPECT_EQ(second.training.checkpoint().restore(path("one"), {.allow_other_replicas = true}).step, 4);
    EXPECT_TRUE(second.training.seen().read().equal(run.training.seen().read())) << "a sum stays the sum";
    for (const char* name : {"0.weight", "1.running_var", "1.num_batches_tracked"}) {
      EXPECT_TRUE(second.training.model().state().at(name).allclose(run.training.model().state().at(name))) << name;
    }
    second.training.steps(2);
  }
}

TEST_F(CheckpointTest, APatternThatFitsNothingIsAMistake) {
  OneTraining run;
  run.training.checkpoint().save(path("one"));
  run.training.steps(1);
  const std::string before = run.training.digest();
  const Checkpoint& checkpoint = run.training.checkpoint();
  for (const bool lenient : {false, true}) {
    expect_error<UsageError>(
        [&] {
          checkpoint.restore(path("one"), {.allow_missing = lenient,
                                           .allow_unexpected = lenient,
                                           .only = {"model.0.*", "modle.1.*"},
                                           .restore_on_create = lenient});
        },
        "LS-CHECKPOINT-MISFIT", {"modle.1.*"});
  }
  EXPECT_EQ(run.training.digest(), before);
  checkpoint.restore(path("one"), {.only = {"best"}});  // tracked values count
}

TEST_F(CheckpointTest, AForeignWriteIsFoundBeforeItIsSaved) {
  OneTraining run;
  run.training.steps(1);
  run.training.checkpoint().save(path("one"));
  const Variable weight = run.training.model().variables().front();
  static_cast<float*>(weight.state().component(0).data_ptr())[1] += 1;
  expect_error<DivergenceError>([&] { run.training.checkpoint().save(path("one")); }, "LS-FOREIGN-WRITE",
                                {"model.0.weight"});
  run.training.checkpoint().restore(path("one"));
  EXPECT_EQ(run.training.checkpoint().restore(path("one")).step, 1) << "restoring mends the variable";
}

TEST_F(CheckpointTest, WhatIsNoCheckpointIsNamed) {
  OneTraining run;
  const Checkpoint& checkpoint = run.training.checkpoint();
  expect_error<DataError>([&] { checkpoint.restore(path("nowhere")); }, "LS-CHECKPOINT-NONE", {"nowhere"});
  fs::create_directories(path("empty"));
  expect_error<DataError>([&] { checkpoint.restore(path("empty")); }, "LS-CHECKPOINT-NONE", {"empty"});
  std::ofstream(path("file")) << "x";
  expect_error<DataError>([&] { checkpoint.save(path("file")); }, "LS-FILE", {"file"});
  std::ofstream(path("empty") + "/manifest.json") << "{}";
  expect_error<DataError>([&] { checkpoint.restore(path("empty")); }, "LS-CHECKPOINT-DAMAGED");
}

TEST_F(CheckpointTest, AStepCannotSave) {
  OneTraining run;
  const auto expect_named = [&](const std::function<void()>& fn, std::string_view call) {
    testing::expect_step_error<UsageError>([&] { run.strategy.run([&](ReplicaContext&) { fn(); }); }, "LS-INSIDE-STEP",
                                           {call});
  };
  const Checkpoint& checkpoint = run.training.checkpoint();
  CheckpointManager manager(checkpoint, {.directory = path("many")});
  expect_named([&] { checkpoint.save(path("one")); }, "Checkpoint::save was called");
  expect_named([&] { checkpoint.restore(path("one")); }, "Checkpoint::restore was called");
  expect_named([&] { manager.save(); }, "CheckpointManager::save was called");
  expect_named([&] { manager.latest(); }, "CheckpointManager::latest was called");
  expect_named([&] { manager.restore_latest(); }, "CheckpointManager::restore_latest was called");
  EXPECT_FALSE(fs::exists(path("one")));
  EXPECT_FALSE(fs::exists(path("many")));
}

}  // namespace
}  // namespace lockstep
