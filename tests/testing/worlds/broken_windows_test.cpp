// The conformance suite finds worlds whose windows do not keep what they promise.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/comm/windows.h"
#include "tests/testing/worlds/broken_world.h"

namespace lockstep {
namespace {

using testing::expect_found;
using testing::PassesOn;
using testing::worlds_of;

/// Has its inner world's windows.
class PassesWindowsOn : public PassesOn, protected Windows {
 public:
  using PassesOn::PassesOn;
  Windows* windows() override { return this; }

 protected:
  Windows& inner() const { return *inner_->windows(); }
  uint64_t unused() const override { return inner().unused(); }
  void open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner) override {
    inner().open(window, std::move(memory), std::move(owner));
  }
  void close(uint64_t window) noexcept override { inner().close(window); }
  void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) override {
    inner().put(window, worker, offset, std::move(bytes));
  }
  void progress() noexcept override { inner().progress(); }
  uint64_t arrived(uint64_t window, int64_t worker) const override { return inner().arrived(window, worker); }
};

class OnlyTheChiefHasWindows final : public PassesWindowsOn {
 public:
  using PassesWindowsOn::PassesWindowsOn;
  Windows* windows() override { return worker_index() == 0 ? this : nullptr; }
};

/// Each put arrives one put later.
class IsOnePutLate final : public PassesWindowsOn {
 public:
  using PassesWindowsOn::PassesWindowsOn;

 protected:
  void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) override {
    Late now{window, worker, offset, std::move(bytes)};
    std::swap(now, late_);
    if (now.bytes.owner) inner().put(now.window, now.worker, now.offset, std::move(now.bytes));
  }

 private:
  struct Late {
    uint64_t window = 0;
    int64_t worker = 0;
    std::size_t offset = 0;
    Bytes bytes = {};
  } late_;
};

/// Changes the last byte of each put, as one does who sends from memory that he does not keep.
class ChangesAByte final : public PassesWindowsOn {
 public:
  using PassesWindowsOn::PassesWindowsOn;

 protected:
  void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) override {
    const auto copy = std::make_shared<std::vector<std::byte>>(bytes.bytes.begin(), bytes.bytes.end());
    if (!copy->empty()) copy->back() ^= std::byte{1};
    inner().put(window, worker, offset, {*copy, copy});
  }
};

class NeverCloses final : public PassesWindowsOn {
 public:
  using PassesWindowsOn::PassesWindowsOn;

 protected:
  void close(uint64_t) noexcept override {}
};

/// Leaves out what has no room, and says nothing.
class DropsWhatHasNoRoom final : public PassesWindowsOn {
 public:
  using PassesWindowsOn::PassesWindowsOn;

 protected:
  void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) override {
    if (offset + bytes.bytes.size() <= 100 && offset <= 100) inner().put(window, worker, offset, std::move(bytes));
  }
};

TEST(BrokenWindows, AreFound) {
  expect_found(worlds_of<OnlyTheChiefHasWindows>(), {"AllOrNoneHaveWindows"}, {"some workers"});
  expect_found(worlds_of<IsOnePutLate>(),
               {"PutsArriveBeforeTheNextExchangeReturns", "PutsOfAWorkerArriveInTheirOrder"});
  expect_found(worlds_of<ChangesAByte>(), {"PutsArriveBeforeTheNextExchangeReturns"}, {"byte"});
  expect_found(worlds_of<NeverCloses>(), {"PutsIntoClosedWindowsAreLost"}, {"closed window"});
  expect_found(worlds_of<DropsWhatHasNoRoom>(), {"PutsWithoutRoomEndTheRun"});
}

}  // namespace
}  // namespace lockstep
