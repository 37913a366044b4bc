// Checkpoints of runs whose slots are sliced: no worker needs whole slots for them.
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/filled_slots.h"
#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "tests/checkpoint/forwarded_files.h"
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
    const internal::Image image = internal::take_image(strategy, internal::Tracked());
    const internal::WritePlan plan = internal::plan_of(image);
    {
      // A share of weights and slots is at most a quarter of three vectors.
      const internal::FilledSlots filled(strategy, plan, {0, 1, 2, 3});
      EXPECT_LE(resident(), kOwn + 3 * kKilobytes / 4 + 2 * kHugePages);
    }
    EXPECT_LE(resident(), kOwn) << "after a save by all workers";
    {
      const internal::FilledSlots filled(strategy, plan, {2});
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

/// Changes a byte of a slot in a checkpoint: `from_end` bytes before the end of its values.
void damage(const std::filesystem::path& folder, const std::string& slot, int64_t from_end) {
  const internal::CheckpointReader reader(internal::host_files(), folder);
  const auto& tensors = reader.manifest().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name != slot) continue;
    const std::filesystem::path path = folder / reader.manifest().files[tensors[i].file].name;
    const auto values = static_cast<int64_t>(reader.place(i).end);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t head = 0;
    file.read(reinterpret_cast<char*>(&head), sizeof head);
    const auto at = static_cast<std::streamoff>(static_cast<int64_t>(sizeof head + head) + values - from_end);
    file.seekg(at);
    const int before = file.get();
    file.seekp(at).put(static_cast<char>(before ^ 1));
    return;
  }
  ADD_FAILURE() << "there is no " << slot;
}

/// Files of which none is made before they may go on.
class HeldFiles final : public testing::ForwardedFiles {
 public:
  std::unique_ptr<internal::NewFile> create(const Path& path) override {
    go_on_.wait(false);
    return ForwardedFiles::create(path);
  }
  void let_it_go_on() {
    go_on_ = true;
    go_on_.notify_all();
  }

 private:
  std::atomic<bool> go_on_{false};
};

TEST_F(SlicedCheckpoint, IsNoneWhereAnotherWorkerLeavesWhileTheChiefStillWrites) {
  const SlotsAre sliced("sliced");
  HeldFiles files;
  run_workers({2, 2}, [&](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    Checkpoint checkpoint(strategy);
    internal::CheckpointAccess::set_files(checkpoint, files);
    // Worker 1 does not wait for the chief's thread, and leaves.
    CheckpointManager manager(checkpoint,
                              {.directory = folder_, .async = !strategy.is_chief(), .all_workers_write = false});
    if (!strategy.is_chief()) {
      manager.save();
      return 0;
    }
    EXPECT_THROW(manager.save(), PeerError);
    files.let_it_go_on();  // the thread reads what is no longer there
    return 0;
  });
  EXPECT_TRUE(internal::whole_checkpoints_in(internal::host_files(), folder_).empty());
}

TEST_F(SlicedCheckpoint, OfAnEmptyFirstVariableIsRestored) {
  const SlotsAre sliced("sliced");
  run_workers({2, 2}, [&](Strategy& strategy) {
    const Variable empty = strategy.make_variable(torch::zeros({0}), {.name = "empty"});
    const Variable vector = strategy.make_variable(torch::ones({100}), {.name = "vector"});
    const Optimizer optimizer = strategy.make_optimizer({empty, vector}, torch::optim::SGDOptions(0.1).momentum(0.9));
    strategy.run([&](ReplicaContext& ctx) {
      (empty.value(ctx).sum() + vector.value(ctx).sum()).backward();
      optimizer.step(ctx);
    });
    const Checkpoint checkpoint(strategy);
    checkpoint.save(folder_ / "c");
    checkpoint.restore(folder_ / "c");
    optimizer.gather_slots();
    EXPECT_TRUE(torch::equal(optimizer.slots().back().read(), torch::full({100}, 2.0)));
    return 0;
  });
}

TEST_F(SlicedCheckpoint, DamageInTheSliceOfOneWorkerIsToldToAllAndNothingChanges) {
  const SlotsAre sliced("sliced");
  run_workers({2, 2}, [&](Strategy& strategy) {
    // Each worker's slice is one of the two equal variables.
    const Variable first = strategy.make_variable(testing::wave(90, 70), {.name = "first"});
    const Variable second = strategy.make_variable(testing::wave(90, 70), {.name = "second"});
    const Optimizer optimizer = strategy.make_optimizer({first, second}, torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto step = [&] {
      strategy.run([&](ReplicaContext& ctx) {
        (first.value(ctx).sin().sum() + second.value(ctx).cos().sum()).backward();
        optimizer.step(ctx);
      });
    };
    step();
    const Checkpoint checkpoint(strategy);
    checkpoint.save(folder_ / "c");
    strategy.on_chief([&] {
      damage(folder_ / "c", optimizer.slots().back().name(), 1);
      return 0;
    });
    step();
    const torch::Tensor weights = second.read();
    const auto restore = [&] { checkpoint.restore(folder_ / "c"); };
    if (strategy.worker_index() == 1) {
      testing::expect_error<DataError>(restore, "LS-CHECKPOINT-DAMAGED", {"'" + optimizer.slots().back().name() + "'"});
    } else {
      testing::expect_error<PeerError>(restore, "LS-PEER-FAILED", {"worker 1"});
    }
    EXPECT_TRUE(torch::equal(second.read(), weights));
    return 0;
  });
}

TEST_F(SlicedCheckpoint, OfSlotsThatAreNotContiguousAndOfAValueThatTheChiefAloneTracksIsRestored) {
  const auto program = [&](Strategy& strategy) {
    const auto model = strategy.make_module([] {
      torch::nn::Conv2d conv(torch::nn::Conv2dOptions(32, 64, 3));
      conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
      return conv;
    });
    const Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
    const auto step = [&] {
      strategy.run([&](ReplicaContext& ctx) {
        const double own = 1 + static_cast<double>(ctx.replica_id().value() + ctx.step());
        auto loss = torch::zeros({});
        for (const torch::Tensor& one : model(ctx)->parameters()) loss = loss + (one * own).sin().sum();
        loss.backward();
        optimizer.step(ctx);
      });
    };
    const auto digest = [&] {
      optimizer.gather_slots();
      std::vector<std::pair<std::string, torch::Tensor>> all;
      for (const Variable& one : model.variables()) all.emplace_back(one.name(), one.read());
      for (const Variable& slot : optimizer.slots()) all.emplace_back(slot.name(), slot.read());
      return sha256_of(all);
    };
    Checkpoint checkpoint(strategy);
    int best = 3;
    if (strategy.is_chief()) {
      checkpoint.track(
          "best", [&] { return std::to_string(best); }, [&](const std::string& text) { best = std::stoi(text); });
    }
    const auto folder = folder_ / std::to_string(strategy.num_workers());
    step();
    const torch::Tensor slot = optimizer.slots().front().state().copies().front();
    EXPECT_FALSE(slot.is_contiguous()) << "this is what the test is about";
    checkpoint.save(folder);
    step();
    const std::string once = digest();
    best = 4;
    checkpoint.restore(folder, {.allow_unexpected = true});
    EXPECT_EQ(best, strategy.is_chief() ? 3 : 4);
    step();
    EXPECT_EQ(digest(), once);
    return once;
  };
  const std::string expected = run_workers({1, 3}, program).front();
  const SlotsAre sliced("sliced");
  for (const std::string& found : run_workers({3, 3}, program)) EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace lockstep
