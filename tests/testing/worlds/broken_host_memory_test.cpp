// The conformance suite finds worlds whose memory of the host is not one memory of all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/host_memory.h"
#include "tests/testing/worlds/broken_world.h"

namespace lockstep {
namespace {

using testing::expect_found;
using testing::PassesOn;
using testing::worlds_of;

/// Has its inner world's memory.
class PassesMemoryOn : public PassesOn, protected HostMemory {
 public:
  using PassesOn::PassesOn;
  HostMemory* host_memory() override { return this; }

 protected:
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return inner_->host_memory()->allocate(bytes); }
  uint64_t calls() const override { return inner_->host_memory()->calls(); }
  std::vector<int64_t> workers() const override { return inner_->host_memory()->workers(); }
};

class KnowsOnlyItself final : public PassesMemoryOn {
 public:
  using PassesMemoryOn::PassesMemoryOn;
  std::vector<int64_t> workers() const override {
    return worker_index() == 0 ? std::vector<int64_t>{0} : PassesMemoryOn::workers();
  }
};

class EachHasItsOwn final : public PassesMemoryOn {
 public:
  using PassesMemoryOn::PassesMemoryOn;
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    kept_.push_back(inner_->host_memory()->allocate(bytes + 8192));
    std::byte* const own = kept_.back().get() + (worker_index() == 0 ? 0 : 4096);
    return {kept_.back(), own};
  }

 private:
  std::vector<std::shared_ptr<std::byte>> kept_;
};

class OnlyTheChiefHasSome final : public PassesMemoryOn {
 public:
  using PassesMemoryOn::PassesMemoryOn;
  HostMemory* host_memory() override { return worker_index() == 0 ? this : nullptr; }
};

class IsNotZero final : public PassesMemoryOn {
 public:
  using PassesMemoryOn::PassesMemoryOn;
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    auto memory = PassesMemoryOn::allocate(bytes);
    if (worker_index() == 0) std::fill_n(memory.get(), bytes, std::byte{1});
    return memory;
  }
};

TEST(BrokenHostMemory, IsFound) {
  expect_found(worlds_of<EachHasItsOwn>(), {"MemoryOfTheHostIsTheSameForAll", "MemoryOfTheHostIsZeroAtFirst"},
               {"byte"});
  expect_found(worlds_of<OnlyTheChiefHasSome>(), {"AllOrNoneHaveMemoryOfTheHost"}, {"some workers"});
  expect_found(worlds_of<KnowsOnlyItself>(), {"WorkersOfAHostNameTheSameWorkers"}, {"workers() is"});
  expect_found(worlds_of<IsNotZero>(), {"MemoryOfTheHostIsTheSameForAll"}, {"byte 0"});
}

}  // namespace
}  // namespace lockstep
