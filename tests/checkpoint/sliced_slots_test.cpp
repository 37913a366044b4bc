// Checkpoints of runs whose slots are sliced: no worker needs whole slots for them.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/filled_slots.h"
#include "tests/checkpoint/model_files.h"
#include "tests/support/errors.h"
#include "tests/support/host_update.h"
#include "tests/support/resident.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::kHugePages;
using testing::resident_kilobytes;
using testing::run_workers;
using testing::SlotsAre;
using testing::WavyNet;
using testing::WorkersCase;

class SlicedCheckpoint : public testing::ScratchFolder {};

struct SaveCase {
  bool tracks = false;  // a value with functions of the program's own
  bool by_manager = false;
  bool async = true;
  bool all_workers_write = true;
};

std::string saved_after_three_steps(Strategy& strategy, const SaveCase& how, const std::string& from,
                                    const std::string& to) {
  const WavyNet net(strategy);
  Checkpoint checkpoint(strategy);
  int tracked = 0;  // a restore reads all state before it lets the program read a value of its own
  if (how.tracks) {
    checkpoint.track(
        "tracked", [&] { return std::to_string(tracked); },
        [&](const std::string& text) { tracked = std::stoi(text); });
  }
  std::optional<CheckpointManager> manager;
  const CheckpointManagerOptions options{
      .directory = from.empty() ? to : from, .async = how.async, .all_workers_write = how.all_workers_write};
  if (how.by_manager) manager.emplace(checkpoint, options);
  if (!from.empty()) {
    net.step(strategy);  // slots are sliced where it restores
    if (manager) {
      EXPECT_TRUE(manager->restore_latest().has_value());
    } else {
      checkpoint.restore(from);
    }
    EXPECT_EQ(tracked, how.tracks ? 17 : 0);
  }
  tracked = 17;
  for (int step = 0; step < 3; ++step) net.step(strategy);
  if (!to.empty() && manager) manager->save();
  if (!to.empty() && !manager) checkpoint.save(to);
  net.step(strategy);
  return net.digest();
}

TEST_F(SlicedCheckpoint, RestoresOnAnyNumberOfWorkersWithSlicedOrWholeSlots) {
  const std::vector<SaveCase> cases{{},
                                    {.tracks = true},
                                    {.by_manager = true},
                                    {.by_manager = true, .async = false},
                                    {.by_manager = true, .all_workers_write = false},
                                    {.tracks = true, .by_manager = true, .async = false, .all_workers_write = false}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto run = [&](const WorkersCase& one, const char* slots, const std::string& from, const std::string& to) {
      const SlotsAre scope(slots);
      const auto found =
          run_workers(one, [&](Strategy& strategy) { return saved_after_three_steps(strategy, cases[i], from, to); });
      for (const std::string& other : found) EXPECT_EQ(other, found.front()) << one << ", case " << i;
      return found.front();
    };
    const std::string whole = path("whole" + std::to_string(i));
    const std::string sliced = path("sliced" + std::to_string(i));
    const std::string expected = run({1, 4}, "whole", "", whole);
    EXPECT_EQ(run({3, 4}, "sliced", "", sliced), expected) << "case " << i;
    const std::string resumed = run({1, 4}, "whole", whole, "");
    for (const std::string& from : {whole, sliced}) {
      EXPECT_EQ(run({2, 4, 2}, "sliced", from, ""), resumed) << from;
      EXPECT_EQ(run({4, 4}, "whole", from, ""), resumed) << from;
      EXPECT_EQ(run({1, 4}, "sliced", from, ""), resumed) << from;
    }
  }
}

constexpr int64_t kElements = 16 << 20;
constexpr int64_t kKilobytes = kElements * 4 / 1024;

TEST_F(SlicedCheckpoint, TakesMemoryForTheSlotsOfOneShare) {
  const SlotsAre sliced("sliced");
  run_workers({4, 4}, [&](Strategy& strategy) {
    const Variable vector = strategy.make_variable(torch::ones({kElements}), {.name = "vector"});
    const Optimizer optimizer = strategy.make_optimizer({vector}, torch::optim::AdamWOptions(0.1));
    const auto step = [&] {
      strategy.run([&](ReplicaContext& ctx) {
        vector.value(ctx).sum().backward();
        optimizer.step(ctx);
      });
    };
    const auto resident = [&] {
      int64_t kilobytes = 0;
      for (const Variable& slot : optimizer.slots()) kilobytes += resident_kilobytes(slot.state().copies().front());
      return kilobytes;
    };
    constexpr int64_t kOwn = 2 * kKilobytes / 4 + 2 * kHugePages;
    step();
    EXPECT_LE(resident(), kOwn);
    const internal::Image image = internal::capture(strategy, internal::Tracked());
    {
      // A share of weights and slots is at most a quarter of three vectors.
      const internal::FilledSlots filled(strategy, image, {0, 1, 2, 3});
      EXPECT_LE(resident(), kOwn + 3 * kKilobytes / 4 + 2 * kHugePages);
    }
    EXPECT_LE(resident(), kOwn) << "after a save by all workers";
    {
      const internal::FilledSlots filled(strategy, image, {2});
      if (strategy.worker_index() == 2) {
        EXPECT_GE(resident(), 2 * kKilobytes);
        for (const auto& one : image.tensors) {
          if (one.kind != "slot") continue;
          EXPECT_NE(one.value[0].item<float>(), 0);
          EXPECT_TRUE(one.value.eq(one.value[0]).all().item<bool>())
              << one.name << ": all elements had equal gradients";
        }
      } else {
        EXPECT_LE(resident(), kOwn);
      }
    }
    EXPECT_LE(resident(), kOwn) << "after a save by one worker";
    CheckpointManager manager(Checkpoint(strategy), {.directory = folder_});
    manager.save();
    EXPECT_LE(resident(), kOwn) << "while a thread still writes";
    step();
    manager.restore_latest();
    EXPECT_LE(resident(), kOwn) << "after a restore";
    for (const Variable& slot : optimizer.slots()) EXPECT_TRUE(slot.state().is_sliced());
    step();
    EXPECT_EQ(vector.read()[0].item<float>(), vector.read()[kElements - 1].item<float>());
    return 0;
  });
}

TEST(SlicedCheckpointReads, OnlyThePiecesThatHoldAWorkersSlices) {
  const SlotsAre sliced("sliced");
  testing::ModelFiles files;
  constexpr int64_t kBytes = 32 << 20;  // two pieces
  const auto read = run_workers({2, 2}, [&](Strategy& strategy) {
    const Variable vector = strategy.make_variable(torch::ones({kBytes / 4}), {.name = "vector"});
    const Optimizer optimizer = strategy.make_optimizer({vector}, torch::optim::SGDOptions(0.1).momentum(0.9));
    strategy.run([&](ReplicaContext& ctx) {
      vector.value(ctx).sum().backward();
      optimizer.step(ctx);
    });
    Checkpoint checkpoint(strategy);
    internal::CheckpointAccess::set_files(checkpoint, files);
    checkpoint.save("c");
    const auto before = strategy.on_chief([&] { return static_cast<int64_t>(files.bytes_read()); });
    checkpoint.restore("c");
    return strategy.on_chief([&] { return static_cast<int64_t>(files.bytes_read()); }) - before;
  });
  // Both read all weights, and each one of the two pieces of the slot.
  EXPECT_GE(read.front(), 3 * kBytes);
  EXPECT_LE(read.front(), 3 * kBytes + (1 << 20)) << "manifests and heads included";
}

TEST_F(SlicedCheckpoint, DamageInTheSliceOfOneWorkerIsToldToAllAndNothingChanges) {
  const SlotsAre sliced("sliced");
  run_workers({2, 2}, [&](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    const Checkpoint checkpoint(strategy);
    checkpoint.save(folder_ / "c");
    const std::string before = net.digest();
    // The last bytes of the file of slots are in the last blocks, which are the last worker's.
    const bool is_damaged = strategy.on_chief([&] {
      for (const auto& one : std::filesystem::directory_iterator(folder_ / "c")) {
        if (!one.path().filename().string().starts_with("optimizer")) continue;
        std::fstream file(one.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(-1, std::ios::end);
        const char last = static_cast<char>(file.get());
        file.seekp(-1, std::ios::end).put(static_cast<char>(last ^ 1));
        return file.good();
      }
      return false;
    });
    EXPECT_TRUE(is_damaged);
    net.step(strategy);
    const std::string now = net.digest();
    EXPECT_NE(now, before);
    EXPECT_THROW(checkpoint.restore(folder_ / "c"), Error);
    EXPECT_EQ(net.digest(), now);
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
