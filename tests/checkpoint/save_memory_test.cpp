// How much memory a save takes: that of one copy of the state, which is kept for the next save.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>

#include "lockstep/core/torch_compat.h"
#include "lockstep/lockstep.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

/// LibTorch's allocator, which counts the bytes of tensors while it is there.
class CountedMemory final : public internal::HostAllocator {
 public:
  CountedMemory() { c10::SetCPUAllocator(this, kPriority); }
  ~CountedMemory() override { c10::SetCPUAllocator(&below_, kPriority); }

  c10::DataPtr new_block(std::size_t bytes) const override {
    auto* const block = new Block{below_.allocate(bytes), bytes};
    now() += static_cast<int64_t>(bytes);
    given += static_cast<int64_t>(bytes);
    for (int64_t most = peak; most < now() && !peak.compare_exchange_weak(most, now());) {
    }
    return {block->memory.get(), block, &CountedMemory::free, block->memory.device()};
  }

  /// Counts from here on.
  void restart() { given = 0, before = now().load(), peak = now().load(); }
  /// The bytes of all tensors since then, and how many there were at once beside those of before.
  int64_t all() const { return given; }
  int64_t at_once() const { return peak - before; }

 private:
  struct Block {
    c10::DataPtr memory;
    std::size_t bytes;
  };
  static constexpr uint8_t kPriority = 0;  // the one of the allocator below, which comes back in the end
  static std::atomic<int64_t>& now() {
    static std::atomic<int64_t> bytes = 0;
    return bytes;
  }
  static void free(void* block) {
    now() -= static_cast<int64_t>(static_cast<Block*>(block)->bytes);
    delete static_cast<Block*>(block);
  }
  c10::Allocator& below_ = *c10::GetCPUAllocator();
  mutable std::atomic<int64_t> given = 0;
  mutable std::atomic<int64_t> peak = 0;
  int64_t before = 0;
};

class SaveMemory : public testing::ScratchFolder {
 protected:
  static constexpr int64_t kElements = 1 << 20;
  static constexpr int64_t kState = 3 * kElements * 4;  // one value of all, and one of each of two replicas
  static constexpr int64_t kLittle = kState / 20;
  MirroredStrategy strategy_{{.devices = testing::lanes(1), .replicas = 2}};
  Variable shared_ = strategy_.make_variable(torch::rand({kElements}), {.name = "shared"});
  Variable own_ = strategy_.make_variable(
      torch::rand({kElements}),
      {.name = "own", .synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kMean});
  Checkpoint checkpoint_{strategy_};
  CountedMemory memory_;
};

TEST_F(SaveMemory, AManagerKeepsOneCopyOfTheStateAndTheNextSaveTakesNoMore) {
  CheckpointManager manager(checkpoint_, {.directory = path("c")});
  memory_.restart();
  manager.save();
  manager.wait();
  EXPECT_GE(memory_.at_once(), kState);
  EXPECT_LT(memory_.at_once(), kState + kLittle);
  for (int64_t save = 0; save < 2; ++save) {
    memory_.restart();
    manager.save();
    manager.wait();
    EXPECT_LT(memory_.all(), kLittle);
  }
}

TEST_F(SaveMemory, ASaveThatTrainingWaitsForCopiesNothing) {
  memory_.restart();
  checkpoint_.save(path("c"));
  EXPECT_LT(memory_.all(), kLittle);
}

}  // namespace
}  // namespace lockstep
