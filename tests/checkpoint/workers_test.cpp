// Several workers save one checkpoint, and any number of them restores it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "lockstep/checkpoint/image.h"
#include "tests/checkpoint/forwarded_files.h"
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
  const internal::Image image = internal::take_image(strategy, internal::Tracked());
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

TEST_F(WorkersCheckpoint, EachWorkerReadsOnlyWhatItRestores) {
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
  for (const int64_t workers : {1, 2}) {
    const int64_t heads = restored(workers, {});
    EXPECT_EQ(restored(workers, {"trunk"}) - heads, workers * 8 * kSize) << workers << " workers";
    EXPECT_EQ(restored(workers, {"head", "trunk"}) - heads, workers * 2 * 8 * kSize) << workers << " workers";
  }
}

constexpr int64_t kOwnSize = 1000;

/// A variable whose component is 7 + r on replica r.
Variable own_values(Strategy& strategy) {
  const Variable own = strategy.make_variable(torch::zeros({kOwnSize}),
                                              {.name = "own", .synchronization = VariableSynchronization::kOnRead});
  strategy.run([&](ReplicaContext& ctx) {
    own.assign(ctx, torch::full({kOwnSize}, 7 + static_cast<float>(ctx.replica_id().value())));
  });
  return own;
}

/// Changes a bit of replica 3's component, which is 10.
void damage_replica_3(const fs::path& folder) {
  const internal::Manifest manifest = internal::read_manifest(internal::host_files(), folder);
  for (const auto& one : manifest.files) {
    std::fstream file(folder / one.name, std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const float last = 10;  // of replica 3
    const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&last), sizeof last));
    if (at == std::string::npos) continue;
    file.clear();
    file.seekp(static_cast<std::streamoff>(at)).put('\x01');
  }
}

TEST_F(WorkersCheckpoint, EachWorkerReadsItsOwnReplicasValuesAndNoOthers) {
  ModelFiles files;
  const auto bytes_of = [&](int64_t workers, const std::vector<std::string>& only) {
    const uint64_t before = files.bytes_read();
    run_workers({.workers = workers, .replicas = 4}, [&](Strategy& strategy) {
      const Variable own = own_values(strategy);
      const Variable none = strategy.make_variable(torch::zeros({0}), {.name = "none"});
      Checkpoint checkpoint(strategy);
      internal::CheckpointAccess::set_files(checkpoint, files);
      if (!files.has("c")) checkpoint.save("c");
      strategy.run([&](ReplicaContext& ctx) { own.assign(ctx, torch::zeros({kOwnSize})); });
      checkpoint.restore("c", {.allow_unexpected = true, .only = only});
      const float first = only.front() == "own" ? 7 : 0;
      strategy.run([&](ReplicaContext& ctx) {
        const auto r = static_cast<float>(ctx.replica_id().value());
        EXPECT_TRUE(own.value(ctx).equal(torch::full({kOwnSize}, first == 0 ? 0 : first + r))) << "replica " << r;
      });
      return 0;
    });
    return static_cast<int64_t>(files.bytes_read() - before);
  };
  bytes_of(1, {"own"});  // saves
  for (const int64_t workers : {1, 2, 4}) {
    EXPECT_EQ(bytes_of(workers, {"own"}) - bytes_of(workers, {"none"}), 4 * 4 * kOwnSize) << workers << " workers";
  }
}

TEST_F(WorkersCheckpoint, DamageThatOneWorkerFindsIsToldToAllAndTheCheckpointBeforeIsRestored) {
  run_workers({.workers = 2, .replicas = 4}, [&](Strategy& strategy) {
    const Variable own = own_values(strategy);
    Checkpoint checkpoint(strategy);
    CheckpointManager manager(checkpoint, {.directory = folder_, .async = false});
    const fs::path first = manager.save();
    strategy.run([](ReplicaContext&) {});
    const fs::path second = manager.save();
    strategy.on_chief([&] { damage_replica_3(second); });
    const auto restore = [&] { checkpoint.restore(second); };
    if (strategy.is_chief()) {
      testing::expect_error<PeerError>(restore, "LS-PEER-FAILED", {"worker 1", "other bytes of 'own", second.string()});
    } else {
      testing::expect_error<DataError>(restore, "LS-CHECKPOINT-DAMAGED", {"other bytes of 'own", second.string()});
    }
    EXPECT_EQ(strategy.step(), 2);
    EXPECT_EQ(manager.restore_latest()->step, 1);
    EXPECT_EQ(strategy.step(), 1);
    strategy.run([&](ReplicaContext& ctx) {
      const auto r = static_cast<float>(ctx.replica_id().value());
      EXPECT_TRUE(own.value(ctx).equal(torch::full({kOwnSize}, 7 + r))) << "replica " << r;
    });
    strategy.on_chief([&] { damage_replica_3(first); });
    const auto restore_any = [&] { manager.restore_latest(); };
    if (strategy.is_chief()) {
      testing::expect_error<PeerError>(restore_any, "LS-PEER-FAILED", {"worker 1", second.string()});
    } else {
      testing::expect_error<DataError>(restore_any, "LS-CHECKPOINT-DAMAGED", {second.string()});
    }
    return 0;
  });
}

TEST_F(WorkersCheckpoint, WorkersThatWouldRestoreDifferentThingsAreNamed) {
  const std::vector<std::pair<RestoreOptions, RestoreOptions>> pairs{
      {{.only = {"a"}}, {.only = {"b"}}}, {{.restore_on_create = true}, {}}, {{.allow_missing = true}, {}}};
  testing::expect_error_on_all<UsageError>(
      {.workers = 2, .replicas = 2},
      [&](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::zeros({2}), {.name = "a"});
        const Variable b = strategy.make_variable(torch::zeros({2}), {.name = "b"});
        const Checkpoint checkpoint(strategy);
        checkpoint.save(folder_ / "c");
        a.assign(torch::ones({2}));
        b.assign(torch::ones({2}));
        for (std::size_t i = 0; i + 1 < pairs.size(); ++i) {
          const auto& [chiefs, others] = pairs[i];
          testing::expect_error<UsageError>(
              [&] { checkpoint.restore(folder_ / "c", strategy.is_chief() ? chiefs : others); }, "LS-WORKER-ORDER",
              {"Checkpoint::restore(", ".only = {"});
        }
        EXPECT_TRUE(a.read().equal(torch::ones({2})) && b.read().equal(torch::ones({2})));
        checkpoint.restore(folder_ / "c", strategy.is_chief() ? pairs.back().first : pairs.back().second);
      },
      "LS-WORKER-ORDER", {".allow_missing = true", ".allow_missing = false"});
}

TEST_F(WorkersCheckpoint, WhereNoneIsWholeTheErrorIsThatOfTheFirstOnAll) {
  run_workers({.workers = 2, .replicas = 4}, [&](Strategy& strategy) {
    const Variable own = own_values(strategy);
    Checkpoint checkpoint(strategy);
    checkpoint.save(folder_ / "a");
    checkpoint.save(folder_ / "b");
    strategy.on_chief([&] {
      fs::resize_file(folder_ / "a" / "replicas.safetensors", 1);  // which the chief finds when it opens it
      damage_replica_3(folder_ / "b");                             // which worker 1 finds
    });
    const auto restore = [&] {
      internal::CheckpointAccess::restore_first(checkpoint, {folder_ / "a", folder_ / "b"}, {});
    };
    const std::string first = (folder_ / "a" / "replicas.safetensors").string();
    if (strategy.is_chief()) {
      testing::expect_error<DataError>(restore, "LS-CHECKPOINT-DAMAGED", {first});
    } else {
      testing::expect_error<PeerError>(restore, "LS-PEER-FAILED", {"worker 0", first});
    }
    return 0;
  });
}

TEST_F(WorkersCheckpoint, AWorkerWithAnotherCheckpointUnderTheNameGetsTheChiefs) {
  for (const float value : {1.0f, 2.0f}) {
    run_workers({.workers = 1, .replicas = 2}, [&](Strategy& strategy) {
      const Variable x = strategy.make_variable(torch::full({3}, value), {.name = "x"});
      Checkpoint(strategy).save(folder_ / (value == 1 ? "one" : "two") / "c");
      return 0;
    });
  }
  struct Moved final : testing::ForwardedFiles {
    std::unique_ptr<internal::OpenFile> open(const fs::path& path) override {
      return ForwardedFiles::open(moved(path));
    }
    bool has(const fs::path& path) override { return ForwardedFiles::has(moved(path)); }
    static fs::path moved(const fs::path& path) {
      std::string text = path.string();
      return text.replace(text.find("/one/"), 5, "/two/");
    }
  } moved;
  run_workers({.workers = 2, .replicas = 2}, [&](Strategy& strategy) {
    const Variable x = strategy.make_variable(torch::zeros({3}), {.name = "x"});
    Checkpoint checkpoint(strategy);
    if (!strategy.is_chief()) internal::CheckpointAccess::set_files(checkpoint, moved);
    checkpoint.restore(folder_ / "one" / "c");
    EXPECT_TRUE(x.read().equal(torch::ones({3})));
    return 0;
  });
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
