// Sums that leave during backward: they change no bit, whatever a program does between backward and its optimizer.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cfenv>
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"
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
using testing::WorkersCase;

constexpr const char* kDuringBackward = "sums, during backward";

/// Layers of some megabytes together, so that there are several buckets, and parameters that share one.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(40, 3000)));
    second = register_module("second", torch::nn::Linear(torch::nn::LinearOptions(3000, 200)));
    third = register_module("third", torch::nn::Linear(torch::nn::LinearOptions(200, 1).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third->forward(torch::tanh(second->forward(torch::tanh(first->forward(x)))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor input(const ReplicaContext& ctx, int64_t samples = 70) {  // too many for factors
  const int64_t first = 1000 * ctx.step() + 100 * ctx.replica_id().value();
  return torch::arange(samples * 40).add(first).to(torch::kFloat).mul(0.37).sin().view({samples, 40});
}

/// A net, and an optimizer of it.
struct Program {
  explicit Program(Strategy& strategy, double rate = 0.01, const std::string& name = "model")
      : net(strategy.make_module([] { return Net(); }, {.name = name})),
        optimizer(strategy.make_optimizer(net, torch::optim::AdamWOptions(rate))) {}

  void backward(ReplicaContext& ctx) { net(ctx)->forward(input(ctx)).pow(2).mean().backward(); }

  Replicated<Net> net;
  Optimizer optimizer;
};

/// What all variables are after a program of some steps.
using Values = std::vector<torch::Tensor>;
Values values_of(Strategy& strategy) {
  Values values;
  for (const Variable& variable : strategy.variables()) values.push_back(variable.read().clone());
  return values;
}

/// What a program makes on a worker stays until the test has looked at it.
struct Kept {
  std::vector<std::shared_ptr<Program>> programs;
  std::vector<Optimizer> optimizers;

  Program& make(Strategy& strategy, double rate = 0.01) {
    const std::string name = "model" + std::to_string(programs.size());
    return *programs.emplace_back(std::make_shared<Program>(strategy, rate, name));
  }
};
using Steps = std::function<void(Strategy&, Kept&)>;

/// How many variables' sums travelled during backward in the last step, by worker.
std::vector<int64_t> expect_bits_of_one_worker(const WorkersCase& one, const Steps& steps, const std::string& what) {
  const int64_t workers = one.workers;
  const EnvironmentScope memory("LOCKSTEP_HOST_MEMORY", "off");  // else the workers share one update
  const auto run = [&](int64_t count, std::vector<int64_t>* during) {
    return run_workers({count, one.replicas, count == 1 ? 1 : one.lanes}, [&](Strategy& strategy) {
      Kept kept;
      steps(strategy, kept);
      if (during) {
        const std::string text = strategy.describe();
        int64_t found = 0;
        for (auto at = text.find(kDuringBackward); at != std::string::npos; at = text.find(kDuringBackward, at + 1))
          ++found;
        (*during)[static_cast<std::size_t>(strategy.worker_index())] = found;
      }
      return values_of(strategy);
    });
  };
  std::vector<int64_t> during(static_cast<std::size_t>(workers));
  const Values expected = run(1, nullptr).front();
  const auto all = run(workers, &during);
  for (std::size_t w = 0; w < all.size(); ++w) {
    EXPECT_EQ(all[w].size(), expected.size());
    for (std::size_t i = 0; i < std::min(all[w].size(), expected.size()); ++i) {
      EXPECT_TRUE(torch::equal(all[w][i], expected[i]))
          << what << ": value " << i << " on worker " << w << " of " << workers << ", greatest difference "
          << (all[w][i] - expected[i]).abs().max().to(torch::kDouble).item<double>() << " of "
          << expected[i].abs().max().to(torch::kDouble).item<double>();
    }
  }
  return during;
}

/// With one replica on each worker.
std::vector<int64_t> expect_bits_of_one_worker(int64_t workers, const Steps& steps, const std::string& what) {
  return expect_bits_of_one_worker(WorkersCase{workers, workers}, steps, what);
}

void expect_during_backward(const std::vector<int64_t>& found, int64_t expected) {
  for (std::size_t w = 0; w < found.size(); ++w) EXPECT_EQ(found[w], expected) << "worker " << w;
}

constexpr int64_t kAll = 5;  // parameters of Net

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

/// Runs `steps` steps with `between` between backward and the optimizer's step.
Steps with(int steps, std::function<void(Program&, ReplicaContext&, int step)> between) {
  return [steps, between](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < steps; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        program.backward(ctx);
        between(program, ctx, step);
        program.optimizer.step(ctx, {.gradients_changed_on_purpose = true});
      });
    }
  };
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

/// Several replicas on each worker, whose blocks are one subtree each, on one lane and on several.
const std::vector<WorkersCase> kSeveralReplicas{{2, 4, 1}, {2, 4, 2}, {2, 3, 1}, {4, 8, 2}, {2, 8, 4}, {2, 8, 3}};

// A replica that changes its gradients after backward may do so while another one adds them up. What has left is then
// compared with what should have, and travels once more. The thread sanitizer reports it, and rightly so.
#ifdef __SANITIZE_THREAD__
constexpr bool kMayRace = false;
#else
constexpr bool kMayRace = true;
#endif

TEST(GradientBuckets, OfSeveralReplicasLeaveWhenTheLastOneHasThem) {
  for (const WorkersCase& one : kSeveralReplicas) {
    const auto plain = with(5, [](Program&, ReplicaContext&, int) {});
    std::ostringstream what;
    what << one;
    expect_during_backward(expect_bits_of_one_worker(one, plain, what.str()), kAll);
    if (!kMayRace) continue;
    const auto changed = with(7, [](Program& program, ReplicaContext& ctx, int step) {
      const auto net = program.net(ctx);
      if (step == 3 && ctx.replica_id() == 1) net->second->weight.grad().data().mul_(0.5);
      if (step == 4 && ctx.replica_id() == 0) net->first->bias.mutable_grad() = torch::Tensor();
      if (step == 5 && ctx.replica_id().value() == 2) program.backward(ctx);
    });
    expect_bits_of_one_worker(one, changed, "changed, " + what.str());
  }
}

TEST(GradientBuckets, OfSeveralSubtreesWaitForTheStep) {
  const auto plain = with(4, [](Program&, ReplicaContext&, int) {});
  expect_during_backward(expect_bits_of_one_worker({3, 8, 2}, plain, "three workers"), 0);
  expect_during_backward(expect_bits_of_one_worker({2, 7, 2}, plain, "seven replicas"), kAll);
  expect_during_backward(expect_bits_of_one_worker({2, 6, 2}, plain, "six replicas"), 0);
}

TEST(GradientBuckets, OfReplicasThatThrowOrGiveUpMemoryDoNotMatter) {
  if (!kMayRace) GTEST_SKIP() << "gradients are changed while they are read, which the thread sanitizer reports";
  const Steps rough = [](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < 10; ++step) {
      const auto body = [&](ReplicaContext& ctx) {
        const bool is_odd = ctx.replica_id().value() % 2 == 1;
        program.backward(ctx);
        if (step == 3 && is_odd) throw std::runtime_error("the step's own error");
        if (step == 5 && is_odd) {  // while others may add it up
          for (auto& parameter : program.net(ctx)->parameters()) parameter.mutable_grad() = torch::Tensor();
          program.backward(ctx);
        }
        if (step == 7 && ctx.replica_id() == 0) {
          program.net(ctx)->second->weight.mutable_grad() = torch::ones({200, 3000});
        }
        program.optimizer.step(ctx, {.gradients_changed_on_purpose = true});
      };
      if (step == 3) {
        EXPECT_THROW(strategy.run(body), ReplicaError);
        strategy.run([&](ReplicaContext& ctx) { program.net(ctx)->zero_grad(); });
      } else {
        strategy.run(body);
      }
    }
  };
  for (const WorkersCase& one : kSeveralReplicas) expect_bits_of_one_worker(one, rough, "rough");
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

/// The same over connections, in the clear and encrypted.
TEST(GradientBuckets, LeaveByConnectionsToo) {
  const auto plain = with(6, [](Program& program, ReplicaContext& ctx, int step) {
    if (step == 4 && ctx.replica_id() == 1) program.net(ctx)->first->weight.grad().data().mul_(0.5);
  });
  for (const bool plaintext : {true, false}) {
    for (const std::string hosts : {"01", "012", "0011"}) {
      const auto workers = static_cast<int64_t>(hosts.size());
      const auto expected = run_workers({1, workers}, [&](Strategy& strategy) {
                              Kept kept;
                              plain(strategy, kept);
                              return values_of(strategy);
                            }).front();
      const uint16_t port = testing::free_port();
      std::vector<std::thread> threads;
      for (int64_t w = 0; w < workers; ++w) {
        threads.emplace_back([&, w] {
          OneOfSeveral strategy(
              testing::join_from_host({.hosts = hosts, .worker = w, .port = port, .plaintext = plaintext}), workers, 1,
              nullptr);
          Kept kept;
          plain(strategy, kept);
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
}

}  // namespace
}  // namespace lockstep
