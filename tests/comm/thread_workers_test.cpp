// Workers as threads of one process: what each gets, and that no wait lasts for ever.
#include "lockstep/comm/thread_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

/// Runs `body` once for each worker, each on a thread of its own, and gives what each threw, "" where nothing.
std::vector<std::string> run_workers(ThreadWorkers& workers, const std::function<void(World&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(workers.size()));
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < workers.size(); ++w) {
    threads.emplace_back([&, w, world = workers.world(w)]() mutable {
      try {
        body(*world);
      } catch (const PeerError& error) {
        errors[static_cast<std::size_t>(w)] = error.what();
      }
      world.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class ThreadWorkersOf : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, ThreadWorkersOf, testing::Values(1, 2, 3, 4));

TEST_P(ThreadWorkersOf, AgreeOnEveryRecordByWorker) {
  ThreadWorkers workers(GetParam());
  const auto errors = run_workers(workers, [&](World& world) {
    for (int round = 0; round < 200; ++round) {
      const auto all = world.agree(std::to_string(round * 10 + world.worker_index()));
      ASSERT_EQ(static_cast<int64_t>(all.size()), GetParam());
      for (int64_t w = 0; w < GetParam(); ++w) {
        ASSERT_EQ(all[static_cast<std::size_t>(w)], std::to_string(round * 10 + w));
      }
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

TEST_P(ThreadWorkersOf, ExchangeBytesOfAnySizes) {
  ThreadWorkers workers(GetParam());
  const auto n = static_cast<std::size_t>(GetParam());
  const auto value = [](std::size_t from, std::size_t to, std::size_t i) {
    return static_cast<std::byte>(from * 31 + to * 7 + i);
  };
  const auto size = [](std::size_t from, std::size_t to) { return from == 1 ? 0 : 5 * from + 3 * to; };
  const auto errors = run_workers(workers, [&](World& world) {
    const auto me = static_cast<std::size_t>(world.worker_index());
    for (int round = 0; round < 50; ++round) {
      std::vector<std::vector<std::byte>> out(n);
      std::vector<std::vector<std::byte>> in(n);
      for (std::size_t w = 0; w < n; ++w) {
        for (std::size_t i = 0; i < size(me, w); ++i) out[w].push_back(value(me, w, i));
        in[w].resize(size(w, me));
      }
      const std::vector<std::span<const std::byte>> to(out.begin(), out.end());
      const std::vector<std::span<std::byte>> from(in.begin(), in.end());
      world.exchange(to, from);
      for (std::size_t w = 0; w < n; ++w) {
        for (std::size_t i = 0; w != me && i < in[w].size(); ++i) ASSERT_EQ(in[w][i], value(w, me, i));
      }
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

TEST(ThreadWorkers, AnAbortEndsEveryWaitWithItsWorkerAndReason) {
  ThreadWorkers workers(3);
  const auto errors = run_workers(workers, [&](World& world) {
    if (world.worker_index() == 1) world.abort("no more memory");
    while (true) world.agree("again");
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("worker 1"), std::string::npos) << error;
    EXPECT_NE(error.find("no more memory"), std::string::npos) << error;
  }
}

TEST(ThreadWorkers, AWorkerThatLeavesIsNamedToTheOthers) {
  ThreadWorkers workers(3);
  const auto errors = run_workers(workers, [&](World& world) {
    world.agree("all are here");
    if (world.worker_index() != 2) world.agree("worker 2 is gone");
  });
  EXPECT_EQ(errors[2], "");
  EXPECT_NE(errors[0].find("worker 2"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("worker 2"), std::string::npos) << errors[1];
}

TEST(ThreadWorkers, AWorkerThatDoesNotComeInTimeIsNamed) {
  ThreadWorkers workers(2, std::chrono::milliseconds(50));
  const auto late = workers.world(1);
  std::string text;
  try {
    workers.world(0)->agree("alone");
  } catch (const PeerError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("worker 1"), std::string::npos) << text;
  EXPECT_THROW(late->agree("too late"), PeerError);  // for the others the run is over
}

TEST(ThreadWorkers, DifferentSizesAreAnErrorForAll) {
  ThreadWorkers workers(2);
  const auto errors = run_workers(workers, [&](World& world) {
    const std::vector<std::byte> out(world.worker_index() == 0 ? 8 : 16);
    std::vector<std::byte> in(8);
    const std::vector<std::span<const std::byte>> to(2, out);
    const std::vector<std::span<std::byte>> from(2, in);
    world.exchange(to, from);
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("16 bytes"), std::string::npos) << error;
}

TEST(ThreadWorkers, AgreementAgainstExchangeIsAnErrorForAll) {
  ThreadWorkers workers(2);
  const auto errors = run_workers(workers, [&](World& world) {
    if (world.worker_index() == 0) {
      world.agree("a record");
    } else {
      const std::vector<std::span<const std::byte>> to(2);
      const std::vector<std::span<std::byte>> from(2);
      world.exchange(to, from);
    }
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("exchange"), std::string::npos) << error;
}

TEST(ThreadWorkers, RefuseNumbersThatAreNone) {
  EXPECT_THROW(ThreadWorkers(0), UsageError);
  EXPECT_THROW(ThreadWorkers(2).world(2), UsageError);
  EXPECT_THROW(ThreadWorkers(2).world(-1), UsageError);
}

TEST(OneWorker, AgreesWithItself) {
  const auto world = internal::one_worker();
  EXPECT_EQ(world->num_workers(), 1);
  EXPECT_EQ(world->worker_index(), 0);
  EXPECT_EQ(world->agree("x"), std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace lockstep
