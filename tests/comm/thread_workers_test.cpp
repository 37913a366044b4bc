// Workers as threads of one process: what each gets, and that no wait lasts for ever.
#include "lockstep/comm/thread_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using Errors = std::vector<std::exception_ptr>;  // by worker, null where nothing was thrown

/// Runs `body` once for each worker, each on a thread of its own, and gives what each threw.
Errors run_workers(ThreadWorkers& workers, const std::function<void(World&)>& body) {
  Errors errors(static_cast<std::size_t>(workers.size()));
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < workers.size(); ++w) {
    threads.emplace_back([&, w, world = workers.world(w)]() mutable {
      try {
        body(*world);
      } catch (const PeerError&) {
        errors[static_cast<std::size_t>(w)] = std::current_exception();
      }
      world.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_none(const Errors& errors, const testing::Where& where = testing::Where::current()) {
  for (const std::exception_ptr& error : errors) {
    if (error) testing::fail_at(where, message_of(error));
  }
}

/// `error` is that of a run which is over, with these values.
void expect_lost(const std::exception_ptr& error, std::initializer_list<std::string_view> values,
                 const testing::Where& where = testing::Where::current()) {
  const auto rethrow = [&] {
    if (error) std::rethrow_exception(error);
  };
  testing::expect_error<PeerError>(rethrow, "LS-PEER-LOST", values, where);
}

class ThreadWorkersOf : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, ThreadWorkersOf, ::testing::Values(1, 2, 3, 4));

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
  expect_none(errors);
}

TEST(ThreadWorkers, ReadNothingOfAWorkerWhoseExchangeHasFailed) {
  constexpr std::size_t kBytes = 1 << 18;
  for (int round = 0; round < 60; ++round) {
    ThreadWorkers workers(3);
    const auto errors = run_workers(workers, [&](World& world) {
      std::vector<std::byte> sent(kBytes, std::byte{1});
      std::vector<std::vector<std::byte>> received(3, std::vector<std::byte>(kBytes));
      received[0].resize(world.worker_index() == 2 ? kBytes / 2 : kBytes);  // worker 2 expects less than worker 0 sends
      const std::vector<std::span<const std::byte>> to(3, sent);
      std::vector<std::span<std::byte>> from(received.begin(), received.end());
      EXPECT_THROW(world.exchange(to, from), PeerError);
      std::fill(sent.begin(), sent.end(), std::byte{2});  // as if the memory had another use now
      for (const auto& bytes : received) {
        EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{2}), 0);
      }
    });
    expect_none(errors);
  }
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
  expect_none(errors);
}

TEST(ThreadWorkers, AnAbortEndsEveryWaitWithItsWorkerAndReason) {
  ThreadWorkers workers(3);
  const auto errors = run_workers(workers, [&](World& world) {
    if (world.worker_index() == 1) world.abort("no more memory");
    while (true) world.agree("again");
  });
  for (const auto& error : errors) expect_lost(error, {"worker 1", "no more memory"});
}

TEST(ThreadWorkers, AWorkerThatLeavesIsNamedToTheOthers) {
  ThreadWorkers workers(3);
  const auto errors = run_workers(workers, [&](World& world) {
    world.agree("all are here");
    if (world.worker_index() != 2) world.agree("worker 2 is gone");
  });
  EXPECT_FALSE(errors[2]);
  expect_lost(errors[0], {"worker 2"});
  expect_lost(errors[1], {"worker 2"});
}

TEST(ThreadWorkers, AWorkerThatDoesNotComeInTimeIsNamed) {
  ThreadWorkers workers(2, std::chrono::milliseconds(50));
  const auto late = workers.world(1);
  testing::expect_error<PeerError>([&] { workers.world(0)->agree("alone"); }, "LS-PEER-LOST",
                                   {"worker 1 has not come to call 1", ".timeouts.patience"});
  // For the others the run is over.
  testing::expect_error<PeerError>([&] { late->agree("too late"); }, "LS-PEER-LOST",
                                   {"worker 1 has not come to call 1"});
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
  for (const auto& error : errors) expect_lost(error, {"worker 1", "16 bytes", "worker 0", "8"});
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
  for (const auto& error : errors) expect_lost(error, {"worker 0", "worker 1"});
}

TEST(ThreadWorkers, RefuseNumbersThatAreNone) {
  testing::expect_error<UsageError>([] { ThreadWorkers(0); }, "LS-OPTION", {"0 workers"});
  testing::expect_error<UsageError>(
      [] {
        ThreadWorkers(3, std::chrono::seconds(1), {0, 0});
      },
      "LS-OPTION", {"hosts of 2 workers", "for 3"});
  testing::expect_error<UsageError>([] { ThreadWorkers(2).world(2); }, "LS-OPTION", {"worker 2 of 2"});
  testing::expect_error<UsageError>([] { ThreadWorkers(2).world(-1); }, "LS-OPTION", {"worker -1 of 2"});
}

TEST(OneWorker, AgreesWithItself) {
  const auto world = internal::one_worker();
  EXPECT_EQ(world->num_workers(), 1);
  EXPECT_EQ(world->worker_index(), 0);
  EXPECT_EQ(world->agree("x"), std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace lockstep
