// Sums that leave during backward: they change no bit, whatever a program does between backward and its optimizer.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cfenv>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/exchange/bucket_programs.h"
#include "tests/support/errors.h"
#include "tests/support/factored.h"
#include "tests/support/free_port.h"
#include "tests/support/hosts.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::EnvironmentScope;
using testing::OneOfSeveral;
using testing::run_workers;
using testing::buckets::expect_bits_of_one_worker;
using testing::buckets::expect_during_backward;
using testing::buckets::input;
using testing::buckets::kAll;
using testing::buckets::kDuringBackward;
using testing::buckets::Kept;
using testing::buckets::Program;
using testing::buckets::Steps;
using testing::buckets::Values;
using testing::buckets::values_of;
using testing::buckets::with;

TEST(GradientBuckets, LeaveDuringBackwardFromTheThirdStepOn) {
  for (const int64_t workers : {2, 3, 4}) {
    for (const int steps : {1, 2, 3, 6}) {
      const auto found = expect_bits_of_one_worker(
          workers,
          [&](Strategy& strategy, Kept& kept) {
            Program& program = kept.make(strategy);
            for (int step = 0; step < steps; ++step) {
              strategy.run([&](ReplicaContext& ctx) {
                program.backward(ctx);
                program.optimizer.step(ctx);
              });
            }
          },
          "plain");
      expect_during_backward(found, steps < 3 ? 0 : kAll);
    }
  }
}

TEST(GradientBuckets, TravelOnceMoreWhereAGradientIsChangedAfterBackward) {
  // By data(), as LibTorch's clip_grad_norm_ does, no version counter moves.
  const auto scaled = with(6, [](Program& program, ReplicaContext& ctx, int step) {
    if (step == 4 && ctx.replica_id() == 1) program.net(ctx)->second->weight.grad().data().mul_(0.5);
  });
  expect_during_backward(expect_bits_of_one_worker(3, scaled, "changed in one step"), kAll);
  const auto last = with(5, [](Program& program, ReplicaContext& ctx, int step) {
    if (step == 4 && ctx.replica_id() == 1) program.net(ctx)->first->bias.grad().view({-1})[7] += 1;
  });
  // What lies before it in the row still counts: the layers behind.
  for (const int64_t found : expect_bits_of_one_worker(2, last, "changed in the last step")) {
    EXPECT_GE(found, 1);
    EXPECT_LT(found, kAll);
  }
}

TEST(GradientBuckets, StopWhereEveryStepChangesGradients) {
  const auto clipped = with(8, [](Program& program, ReplicaContext& ctx, int) {
    for (auto& parameter : program.net(ctx)->parameters()) parameter.grad().data().mul_(0.25);
  });
  expect_during_backward(expect_bits_of_one_worker(2, clipped, "always changed"), 0);
}

TEST(GradientBuckets, WaitForAsManyBackwardsAsTheStepBeforeHad) {
  const auto accumulates = with(5, [](Program& program, ReplicaContext& ctx, int) {
    program.backward(ctx);
    program.backward(ctx);
  });
  expect_during_backward(expect_bits_of_one_worker(2, accumulates, "three backwards"), kAll);
  const auto varies = with(7, [](Program& program, ReplicaContext& ctx, int step) {
    for (int more = 0; more < step % 3; ++more) program.backward(ctx);
  });
  expect_bits_of_one_worker(3, varies, "one to three backwards");
}

TEST(GradientBuckets, MayBeDroppedReplacedOrMissing) {
  const auto dropped = with(6, [](Program& program, ReplicaContext& ctx, int step) {
    if (step % 2 == 0) return;
    for (auto& parameter : program.net(ctx)->parameters()) parameter.mutable_grad() = torch::Tensor();
    program.backward(ctx);
  });
  expect_bits_of_one_worker(2, dropped, "dropped and made again");
  const auto replaced = with(6, [](Program& program, ReplicaContext& ctx, int) {
    torch::Tensor& gradient = program.net(ctx)->second->weight.mutable_grad();
    gradient = gradient.t().contiguous().t();  // other strides
  });
  expect_bits_of_one_worker(2, replaced, "another layout");
  const auto missing = with(7, [](Program& program, ReplicaContext& ctx, int step) {
    if (step == 4) program.net(ctx)->second->bias.mutable_grad() = torch::Tensor();  // on all
    if (step == 5 && ctx.replica_id() == 0) program.net(ctx)->first->bias.mutable_grad() = torch::Tensor();
  });
  expect_bits_of_one_worker(3, missing, "missing");
}

TEST(GradientBuckets, OfAWorkerWithoutBackwardDoNotMatter) {
  const Steps sometimes_idle = [](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < 8; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        if (step % 4 != 3 || ctx.replica_id() != 1) program.backward(ctx);
        program.optimizer.step(ctx);
      });
    }
  };
  expect_bits_of_one_worker(3, sometimes_idle, "no backward on replica 1");
}

TEST(GradientBuckets, MeetOtherCallsWhileTheyTravel) {
  const auto calls = with(5, [](Program&, ReplicaContext& ctx, int step) {
    const auto sum = ctx.all_reduce(Reduction::kSum, torch::full({70'000}, 0.1 * (ctx.replica_id().value() + step)));
    EXPECT_EQ(sum.numel(), 70'000);
    ctx.broadcast(ReplicaId(1), torch::ones({3}));
  });
  expect_during_backward(expect_bits_of_one_worker(3, calls, "all_reduce behind backward"), kAll);
}

TEST(GradientBuckets, OfRunsWithoutAStepStay) {
  const Steps two_runs = [](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < 6; ++step) {
      strategy.run([&](ReplicaContext& ctx) { program.backward(ctx); });
      strategy.evaluate([&](ReplicaContext& ctx) { program.net(ctx)->forward(input(ctx)); });
      strategy.run([&](ReplicaContext& ctx) { program.optimizer.step(ctx); });
    }
  };
  expect_bits_of_one_worker(2, two_runs, "backward and step in two runs");
}

TEST(GradientBuckets, OfSeveralOptimizersDoNotMix) {
  const Steps two = [](Strategy& strategy, Kept& kept) {
    Program& one = kept.make(strategy, 0.01);
    Program& other = kept.make(strategy, 0.02);
    for (int step = 0; step < 6; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const auto made = one.net(ctx)->forward(input(ctx));
        (made * other.net(ctx)->forward(input(ctx) + made.mean())).pow(2).mean().backward();  // into both
        one.optimizer.step(ctx);
        if (step % 2 == 0) other.optimizer.step(ctx);  // else they accumulate
      });
    }
  };
  expect_bits_of_one_worker(3, two, "two optimizers");
  const Steps anew = [](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < 9; ++step) {
      if (step % 3 == 2) {  // some buckets are on their way when their optimizer ends
        strategy.run([&](ReplicaContext& ctx) { program.backward(ctx); });
        program.optimizer = strategy.make_optimizer(program.net, torch::optim::SGDOptions(0.01 * step));
      }
      strategy.run([&](ReplicaContext& ctx) {
        program.backward(ctx);
        program.optimizer.step(ctx);
      });
    }
  };
  expect_bits_of_one_worker(2, anew, "an optimizer that ends");
}

TEST(GradientBuckets, GoOnAfterAStepThatFailed) {
  const Steps fails = [](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < 8; ++step) {
      const auto body = [&](ReplicaContext& ctx) {
        program.backward(ctx);
        if (step == 4 && ctx.replica_id() == 1) throw std::runtime_error("the step's own error");
        program.optimizer.step(ctx);
      };
      if (step == 4) {
        EXPECT_THROW(strategy.run(body), ReplicaError);
        strategy.run([&](ReplicaContext& ctx) { program.net(ctx)->zero_grad(); });
      } else {
        strategy.run(body);
      }
    }
  };
  expect_during_backward(expect_bits_of_one_worker(3, fails, "a step failed"), kAll);
}

TEST(GradientBuckets, TakeClippingAndAccumulatorsOfDoubles) {
  const Steps doubles = [](Strategy& strategy, Kept& kept) {
    const Variable weight =
        strategy.make_variable(torch::arange(300'000, torch::kDouble).mul(0.1).sin(), {.name = "weight"});
    const Variable half = strategy.make_variable(torch::ones({50}, torch::kBFloat16), {.name = "half"});
    const Variable small = strategy.make_variable(torch::ones({7}), {.name = "small"});
    const Optimizer optimizer =
        strategy.make_optimizer({weight, half, small}, torch::optim::SGDOptions(0.1).momentum(0.9));
    kept.optimizers.push_back(optimizer);
    for (int step = 0; step < 5; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const double scale = 1.0 + static_cast<double>(ctx.replica_id().value());
        const auto loss = (weight.value(ctx) * scale).tanh().pow(2).mean() + (small.value(ctx) * scale).pow(3).sum() +
                          half.value(ctx).to(torch::kFloat).mul(scale).pow(2).sum();
        loss.backward();
        optimizer.step(ctx, {.clip_global_norm = 0.5});
      });
    }
  };
  expect_during_backward(expect_bits_of_one_worker(4, doubles, "doubles and clipping"), 2);
}

TEST(GradientBuckets, AreAddedUpInTheModesOfTheStep) {
  const Steps rounds_upward = [](Strategy& strategy, Kept& kept) {
    const Variable second = strategy.make_variable(torch::ones({10}), {.name = "second"});
    const Variable first = strategy.make_variable(torch::ones({300'000}), {.name = "first"});
    kept.optimizers.push_back(strategy.make_optimizer({second, first}, torch::optim::SGDOptions(0.1)));
    for (int step = 0; step < 6; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const auto values = torch::arange(300'000).add(1 + ctx.replica_id().value()).to(torch::kFloat).rsqrt();
        const auto loss = (first.value(ctx) * values).sum();
        if (step >= 3) std::fesetround(FE_UPWARD);  // the products of this backward are exact
        loss.backward();
        ctx.all_reduce(Reduction::kSum, torch::ones({1}));  // brings the others' first bucket
        second.value(ctx).sum().backward();
        std::fesetround(FE_TONEAREST);
        kept.optimizers.front().step(ctx);
      });
    }
  };
  for (const int64_t workers : {2, 4}) expect_bits_of_one_worker(workers, rounds_upward, "rounded upward in backward");
}

TEST(GradientBuckets, OfASwitchThatIsOffStay) {
  const EnvironmentScope scope("LOCKSTEP_BUCKETS", "off");
  const auto plain = with(4, [](Program&, ReplicaContext&, int) {});
  expect_during_backward(expect_bits_of_one_worker(2, plain, "off"), 0);
}

TEST(GradientBuckets, HaveASwitchThatIsRead) {
  const EnvironmentScope memory("LOCKSTEP_HOST_MEMORY", "off");
  const EnvironmentScope scope("LOCKSTEP_BUCKETS", "on");
  testing::expect_error_on_all<UsageError>({2, 2}, [](Strategy& strategy) { Program program(strategy); },
                                           "LS-ENVIRONMENT", {"LOCKSTEP_BUCKETS is 'on'"});
}

/// Requires the bits of one worker, and sums that leave during backward, over connections in the clear and encrypted.
/// `hosts` has the host of each worker.
void expect_over_connections(const std::string& hosts, int64_t replicas, int lanes, const Steps& steps) {
  const EnvironmentScope memory("LOCKSTEP_HOST_MEMORY", "off");
  const auto workers = static_cast<int64_t>(hosts.size());
  const auto expected = run_workers({1, replicas}, [&](Strategy& strategy) {
                          Kept kept;
                          steps(strategy, kept);
                          return values_of(strategy);
                        }).front();
  for (const bool plaintext : {true, false}) {
    const uint16_t port = testing::free_port();
    std::vector<std::thread> threads;
    for (int64_t w = 0; w < workers; ++w) {
      threads.emplace_back([&, w] {
        OneOfSeveral strategy(
            testing::join_from_host({.hosts = hosts, .worker = w, .port = port, .plaintext = plaintext}), replicas,
            lanes, nullptr);
        Kept kept;
        steps(strategy, kept);
        EXPECT_NE(strategy.describe().find(kDuringBackward), std::string::npos) << hosts << ", worker " << w;
        const Values values = values_of(strategy);
        ASSERT_EQ(values.size(), expected.size());
        for (std::size_t i = 0; i < values.size(); ++i)
          EXPECT_TRUE(torch::equal(values[i], expected[i])) << hosts << ", worker " << w << ", value " << i;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(GradientBuckets, LeaveByConnectionsToo) {
  const auto plain = with(6, [](Program& program, ReplicaContext& ctx, int step) {
    if (step == 4 && ctx.replica_id() == 1) program.net(ctx)->first->weight.grad().data().mul_(0.5);
  });
  for (const std::string hosts : {"01", "012", "0011"}) {
    expect_over_connections(hosts, static_cast<int64_t>(hosts.size()), 1, plain);
  }
}

/// One backward completes sums of two optimizers, on the threads of two replicas at the same time.
TEST(GradientBuckets, OfSeveralOptimizersAndReplicasUseOneConnectionInTurn) {
  const Steps two = [](Strategy& strategy, Kept& kept) {
    Program& one = kept.make(strategy, 0.01);
    Program& other = kept.make(strategy, 0.02);
    for (int step = 0; step < 12; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        (one.net(ctx)->forward(input(ctx)) * other.net(ctx)->forward(input(ctx))).pow(2).mean().backward();
        one.optimizer.step(ctx);
        other.optimizer.step(ctx);
      });
    }
  };
  expect_over_connections("01", 4, 2, two);
}

}  // namespace
}  // namespace lockstep
