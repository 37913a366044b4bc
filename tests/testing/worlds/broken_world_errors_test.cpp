// Broken worlds: each breaks one promise of World about failures and ends, and the conformance suite names a check that
// finds it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/worlds/broken_world.h"

namespace lockstep {
namespace {

using testing::expect_found;
using testing::From;
using testing::PassesOn;
using testing::To;
using testing::worlds_of;

constexpr std::chrono::seconds kLittlePatience(1);

class IgnoresAborts final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  void abort(const std::string&) noexcept override {}
};

class ForgetsTheReason final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  void abort(const std::string&) noexcept override { inner_->abort("something"); }
};

/// What all calls of a world pass through, where what they throw is changed.
class ChangesErrors : public PassesOn {
 public:
  using PassesOn::PassesOn;
  std::vector<std::string> agree(const std::string& mine) override {
    std::vector<std::string> records;
    changed([&] { records = inner_->agree(mine); });
    return records;
  }
  void exchange(To to, From from) override {
    changed([&] { inner_->exchange(to, from); });
  }

 private:
  void changed(const std::function<void()>& call) {
    try {
      call();
    } catch (const PeerError& error) {
      change(error);
    }
  }
  virtual void change(const PeerError& error) = 0;
};

class NamesAnotherWorker final : public ChangesErrors {
 public:
  using ChangesErrors::ChangesErrors;

 private:
  void change(const PeerError& error) override {
    std::string text = error.what();
    for (auto at = text.find("worker "); at != std::string::npos; at = text.find("worker ", at + 1)) {
      text[at + 7] = text[at + 7] == '0' ? '1' : '0';
    }
    throw PeerError("LS-PEER-LOST", text, "start again");
  }
};

class NamesNobody final : public ChangesErrors {
 public:
  using ChangesErrors::ChangesErrors;

 private:
  void change(const PeerError&) override { throw PeerError("LS-PEER-LOST", std::string("connection reset"), "retry"); }
};

class ThrowsAnotherType final : public ChangesErrors {
 public:
  using ChangesErrors::ChangesErrors;

 private:
  void change(const PeerError& error) override { throw std::runtime_error(error.what()); }
};

class ThrowsAnotherTextEachTime final : public ChangesErrors {
 public:
  using ChangesErrors::ChangesErrors;

 private:
  void change(const PeerError& error) override {
    throw PeerError("LS-PEER-LOST", error.what() + std::to_string(++count_), "start again");
  }
  int count_ = 0;
};

/// The second failure takes the place of the first one.
class KeepsTheLastReason final : public ChangesErrors {
 public:
  using ChangesErrors::ChangesErrors;
  void abort(const std::string& reason) noexcept override {
    last_ = reason;
    inner_->abort(reason);
  }

 private:
  void change(const PeerError& error) override {
    throw PeerError("LS-PEER-LOST", last_.empty() ? error.what() : "worker 1 aborted: " + last_, "start again");
  }
  std::string last_;
};

/// Its calls go on as if nothing had happened.
class SwallowsErrors final : public ChangesErrors {
 public:
  using ChangesErrors::ChangesErrors;

 private:
  void change(const PeerError&) override {}
};

/// Waits for ever for a worker that does not come.
class HangsWhenItShouldGiveUp final : public ChangesErrors {
 public:
  using ChangesErrors::ChangesErrors;
  static std::atomic<bool> released;

 private:
  void change(const PeerError& error) override {
    released.wait(false);
    throw error;
  }
};
std::atomic<bool> HangsWhenItShouldGiveUp::released{false};

/// Nobody notices that its worker has left.
class IsNeverGone final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  ~IsNeverGone() override { kept().push_back(std::move(inner_)); }
  IsNeverGone(const IsNeverGone&) = delete;
  IsNeverGone& operator=(const IsNeverGone&) = delete;

 private:
  struct List {
    std::mutex mutex;
    std::vector<std::shared_ptr<World>> worlds;
    void push_back(std::shared_ptr<World> world) {
      const std::lock_guard<std::mutex> lock(mutex);
      worlds.push_back(std::move(world));
    }
  };
  static List& kept() {
    static List list;
    return list;
  }
};

/// The first worker finishes each exchange when it makes the next one.
class FinishesWithTheNextCall final : public PassesOn {
 public:
  using PassesOn::PassesOn;
  void exchange(To to, From from) override {
    if (unfinished_) inner_->agree("finished");
    inner_->exchange(to, from);
    unfinished_ = worker_index() == 0;
    if (!unfinished_) inner_->agree("finished");
  }

 private:
  bool unfinished_ = false;
};

class LeaksAFile final : public PassesOn {
 public:
  explicit LeaksAFile(std::shared_ptr<World> inner) : PassesOn(std::move(inner)) {
    open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
};

class LeaksAThread final : public PassesOn {
 public:
  explicit LeaksAThread(std::shared_ptr<World> inner) : PassesOn(std::move(inner)) {
    std::thread([] { ended.wait(false); }).detach();
  }
  static std::atomic<bool> ended;
};
std::atomic<bool> LeaksAThread::ended{false};

class LeaksAMapping final : public PassesOn {
 public:
  explicit LeaksAMapping(std::shared_ptr<World> inner) : PassesOn(std::move(inner)) {
    mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
};

TEST(BrokenWorld, ThatIgnoresAbortsIsFound) {
  expect_found(worlds_of<IgnoresAborts>(2, kLittlePatience),
               {"AnAbortReachesThoseWhoWaitInAgree", "AnAbortReachesThoseWhoWaitInExchange", "TheFirstReasonStays",
                "AnAbortBesideCallsEndsTheRunAtAnyMoment", "AnAbortBesideACallThatWaitsEndsIt"});
}

TEST(BrokenWorld, ThatForgetsTheReasonIsFound) {
  expect_found(worlds_of<ForgetsTheReason>(),
               {"AnAbortReachesThoseWhoWaitInAgree", "AnAbortReachesThoseWhoCallLater", "TheFirstReasonStays"},
               {"does not have the reason"});
  // Which check of the error notices it first depends on who throws first.
  expect_found(worlds_of<KeepsTheLastReason>(), {"TheFirstReasonStays"}, {"the first reason"});
}

TEST(BrokenWorld, WhoseErrorsAreWrongIsFound) {
  const std::vector<std::string> names{"AnAbortReachesThoseWhoWaitInAgree", "AWorkerThatLeavesIsNamedToThoseWhoWait",
                                       "AWorkerThatDoesNotComeIsNamedWhenThePatienceEnds"};
  expect_found(worlds_of<NamesAnotherWorker>(3), names, {"does not name worker"});
  expect_found(worlds_of<NamesNobody>(), names, {"names no worker"});
  expect_found(worlds_of<ThrowsAnotherType>(), names, {"expected a PeerError"});
  expect_found(worlds_of<ThrowsAnotherTextEachTime>(), names, {"what a later"});
  expect_found(worlds_of<SwallowsErrors>(), names, {"threw nothing"});
}

TEST(BrokenWorld, ThatHangsIsFoundAndTheCheckSaysWhatEachWorkerDoes) {
  const auto hangs = worlds_of<HangsWhenItShouldGiveUp>(3, kLittlePatience);
  expect_found(hangs, {"AWorkerThatDoesNotComeIsNamedWhenThePatienceEnds"},
               {"the check hangs", "worker 0 is in agree()", "worker 1 is in agree()",
                "worker 2 waits for the check's other threads"});
  HangsWhenItShouldGiveUp::released = true;
  HangsWhenItShouldGiveUp::released.notify_all();
}

TEST(BrokenWorld, WhoseWorkersAreNeverGoneIsFound) {
  expect_found(worlds_of<IsNeverGone>(2, kLittlePatience),
               {"AWorkerThatLeavesIsNamedToThoseWhoWait", "AWorkerThatHasLeftIsNamedToThoseWhoCallLater"},
               {"all of its patience"});
}

TEST(BrokenWorld, WhoseLastCallIsLostIsFound) {
  expect_found(worlds_of<FinishesWithTheNextCall>(3), {"AWorkerMayLeaveWhenItsLastCallHasReturned"}, {"stopped by"});
}

TEST(BrokenWorld, ThatLeavesSomethingBehindIsFound) {
  expect_found(worlds_of<LeaksAFile>(), {"NothingIsLeftOfWorlds"}, {"open files"});
  expect_found(worlds_of<LeaksAMapping>(), {"NothingIsLeftOfWorlds"}, {"shared mappings"});
  expect_found(worlds_of<LeaksAThread>(), {"NothingIsLeftOfWorlds"}, {"threads"});
  LeaksAThread::ended = true;
  LeaksAThread::ended.notify_all();
}

}  // namespace
}  // namespace lockstep
