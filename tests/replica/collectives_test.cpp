// What replicas compute together inside a step.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "lockstep/reduce/loops/stream_copy.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

class CollectivesOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};
};

Tensor value_of(int64_t replica, const std::vector<int64_t>& shape, at::ScalarType type = torch::kFloat) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + replica);
  return at::isFloatingType(type) ? torch::randn(shape, generator).to(type)
                                  : torch::randint(-9, 9, shape, generator, type);
}

TEST_P(CollectivesOf, AllReduceEqualsTheStrategysReduceInEveryDtypeAndShape) {
  const std::vector<std::vector<int64_t>> shapes{{}, {1}, {0}, {3, 5}, {5000}};
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kInt, torch::kLong, torch::kHalf, torch::kBFloat16}) {
    for (const auto& shape : shapes) {
      for (const auto reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin, Reduction::kMax}) {
        const Tensor expected =
            strategy_.reduce(reduction, strategy_.per_replica([&](ReplicaId r) { return value_of(r, shape, type); }));
        for (const Tensor& result : strategy_.run([&](ReplicaContext& ctx) {
               return ctx.all_reduce(reduction, value_of(ctx.replica_id(), shape, type));
             })) {
          EXPECT_EQ(result.scalar_type(), expected.scalar_type());
          EXPECT_TRUE(torch::equal(result, expected)) << name_of(reduction) << " " << c10::toString(type);
        }
      }
    }
  }
}

TEST_P(CollectivesOf, AllReduceGivesEachReplicaATensorOfItsOwn) {
  const auto results = strategy_.run([](ReplicaContext& ctx) {
    Tensor sum = ctx.all_reduce(Reduction::kSum, torch::ones({2000}));
    sum.add_(ctx.replica_id().value());
    return sum;
  });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(results[r][0].item<double>(), replicas() + r);
}

TEST_P(CollectivesOf, AllReduceOfMoreThanTheCachesHoldHasTheSameBits) {
  const int64_t count = static_cast<int64_t>(internal::kStreamedBytes / sizeof(float)) / replicas() + 1237;
  const auto values = strategy_.per_replica([&](ReplicaId r) { return value_of(r, {count}); });
  for (const auto reduction : {Reduction::kSum, Reduction::kMean}) {
    const Tensor expected = strategy_.reduce(reduction, values);
    for (const auto& equal : strategy_.run([&](ReplicaContext& ctx) {
           return torch::equal(ctx.all_reduce(reduction, values[ctx.replica_id()]), expected);
         })) {
      EXPECT_TRUE(equal) << name_of(reduction);
    }
  }
}

TEST_P(CollectivesOf, AllReduceTakesTensorsWhoseNegationIsStillToBeDone) {
  const auto sums = strategy_.run([&](ReplicaContext& ctx) {
    return ctx.all_reduce(Reduction::kSum, torch::ones({3}, torch::kFloat)._neg_view());
  });
  for (const Tensor& sum : sums) EXPECT_TRUE(torch::equal(sum, torch::full({3}, -static_cast<double>(replicas()))));
}

TEST_P(CollectivesOf, AllReduceOfAListMeetsOnce) {
  strategy_.run([&](ReplicaContext& ctx) {
    const auto sums = ctx.all_reduce(Reduction::kSum, std::vector<Tensor>{torch::ones({2}), torch::full({3}, 2.0)});
    EXPECT_TRUE(torch::equal(sums[0], torch::full({2}, static_cast<double>(replicas()))));
    EXPECT_TRUE(torch::equal(sums[1], torch::full({3}, 2.0 * static_cast<double>(replicas()))));
  });
}

TEST_P(CollectivesOf, AllReduceTakesTensorsThatAreNotContiguous) {
  const auto results = strategy_.run([](ReplicaContext& ctx) {
    return ctx.all_reduce(Reduction::kSum, torch::arange(6).view({2, 3}).to(torch::kFloat).t());
  });
  EXPECT_TRUE(
      torch::equal(results[0], torch::arange(6).view({2, 3}).to(torch::kFloat).t() * static_cast<double>(replicas())));
}

// d/dx_r of sum_q w_q * f(all_reduce(x))_q, against the formula.
TEST_P(CollectivesOf, AllReduceIsDifferentiable) {
  for (const auto reduction : {Reduction::kSum, Reduction::kMean}) {
    const auto gradients = strategy_.run([&](ReplicaContext& ctx) {
      Tensor x = value_of(ctx.replica_id(), {3}).requires_grad_();
      const Tensor y = ctx.all_reduce(reduction, x * 2);
      (y * static_cast<double>(ctx.replica_id() + 1)).sum().backward();
      return x.grad();
    });
    const double total = static_cast<double>(replicas() * (replicas() + 1)) / 2;
    const double expected = 2 * (reduction == Reduction::kSum ? total : total / static_cast<double>(replicas()));
    for (const Tensor& gradient : gradients)
      EXPECT_TRUE(torch::allclose(gradient, torch::full({3}, expected))) << gradient;
  }
}

TEST_P(CollectivesOf, TheGradientOfAnExtremeGoesToTheLowestReplicaThatHoldsIt) {
  const auto gradients = strategy_.run([&](ReplicaContext& ctx) {
    // Element 0: all equal. Element 1: the last replica is the largest.
    Tensor x = torch::tensor({1.0, static_cast<double>(ctx.replica_id())}).requires_grad_();
    ctx.all_reduce(Reduction::kMax, x).sum().backward();
    return x.grad();
  });
  const auto n = static_cast<double>(replicas());
  for (int64_t r = 0; r < replicas(); ++r) {
    EXPECT_EQ(gradients[r][0].item<double>(), r == 0 ? n : 0) << "replica " << r;
    EXPECT_EQ(gradients[r][1].item<double>(), r == replicas() - 1 ? n : 0) << "replica " << r;
  }
}

TEST_P(CollectivesOf, AllReduceCanBeDifferentiatedTwice) {
  const auto second = strategy_.run([&](ReplicaContext& ctx) {
    Tensor x = torch::full({1}, static_cast<double>(ctx.replica_id() + 1)).requires_grad_();
    const Tensor y = ctx.all_reduce(Reduction::kSum, x * x).sum();  // the same on all
    const Tensor first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.sum()}, {x})[0];
  });
  for (const Tensor& value : second) EXPECT_EQ(value.item<double>(), 2 * static_cast<double>(replicas()));
}

TEST_P(CollectivesOf, AllGatherJoinsUnequalPartsInReplicaOrder) {
  std::vector<Tensor> parts;
  for (int64_t r = 0; r < replicas(); ++r) parts.push_back(value_of(r, {r % 3, 2}));
  const Tensor expected = torch::cat(parts, 0);
  for (const Tensor& result : strategy_.run([&](ReplicaContext& ctx) {
         return ctx.all_gather(value_of(ctx.replica_id(), {ctx.replica_id() % 3, 2}));
       })) {
    EXPECT_TRUE(torch::equal(result, expected));
  }
  for (const Tensor& result : strategy_.run([&](ReplicaContext& ctx) {
         return ctx.all_gather(value_of(ctx.replica_id(), {2, 1}), -1);
       })) {
    EXPECT_EQ(result.sizes(), (std::vector<int64_t>{2, replicas()}));
  }
}

TEST_P(CollectivesOf, AllGatherIsDifferentiable) {
  const auto gradients = strategy_.run([&](ReplicaContext& ctx) {
    Tensor x = value_of(ctx.replica_id(), {ctx.replica_id() + 1}).requires_grad_();
    const Tensor all = ctx.all_gather(x * 3);
    (all * torch::arange(all.numel())).sum().backward();
    return x.grad();
  });
  int64_t offset = 0;
  for (int64_t r = 0; r < replicas(); ++r) {
    const Tensor expected =
        torch::arange(offset, offset + r + 1).to(torch::kFloat) * 3 * static_cast<double>(replicas());
    EXPECT_TRUE(torch::allclose(gradients[r], expected));
    offset += r + 1;
  }
}

TEST_P(CollectivesOf, BroadcastGivesOneReplicasTensorToAll) {
  const ReplicaId from = replicas() - 1;
  const auto results = strategy_.run([&](ReplicaContext& ctx) {
    Tensor value = ctx.broadcast(from, ctx.replica_id() == from ? torch::full({3}, 5.0) : Tensor());
    value.add_(ctx.replica_id().value());
    return value;
  });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(results[r][0].item<double>(), 5 + r);
}

TEST_P(CollectivesOf, MergeCallRunsOnceWithWhatEachReplicaGave) {
  std::atomic<int> calls{0};
  const auto results = strategy_.run([&](ReplicaContext& ctx) {
    return ctx.merge_call(
        [&](Strategy& strategy, const PerReplica<Tensor>& tensors, const PerReplica<int64_t>& ids) {
          ++calls;
          EXPECT_EQ(&strategy, &strategy_);
          int64_t expected = 0;
          for (const int64_t id : ids) EXPECT_EQ(id, expected++);
          return strategy.reduce(Reduction::kSum, tensors).item<double>();
        },
        torch::full({}, 2.0), ctx.replica_id().value());
  });
  EXPECT_EQ(calls, 1);
  for (const double result : results) EXPECT_EQ(result, 2.0 * static_cast<double>(replicas()));
}

TEST_P(CollectivesOf, MergeCallHandsAPerReplicaOut) {
  const auto results = strategy_.run([&](ReplicaContext& ctx) {
    return ctx.merge_call(
        [](Strategy& strategy) { return strategy.per_replica([](ReplicaId r) { return r.value() * 10; }); });
  });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(results[r], r * 10);
}

int64_t count_of(Strategy&, const PerReplica<int>& values) { return static_cast<int64_t>(values.size()); }

TEST_P(CollectivesOf, MergeCallTakesConstLambdasAndFunctions) {
  const auto count = [](Strategy&, const PerReplica<int>& values) { return static_cast<int64_t>(values.size()); };
  strategy_.run([&](ReplicaContext& ctx) {
    EXPECT_EQ(ctx.merge_call(count, 1), strategy_.num_replicas());
    EXPECT_EQ(ctx.merge_call(count_of, 1), strategy_.num_replicas());
  });
}

TEST_P(CollectivesOf, MergeCallMayReturnNothing) {
  int calls = 0;
  strategy_.run([&](ReplicaContext& ctx) { ctx.merge_call([&](Strategy&) { ++calls; }); });
  EXPECT_EQ(calls, 1);
}

TEST_P(CollectivesOf, AnExceptionOfAMergeFunctionReachesTheCallerOfRun) {
  const auto text = testing::nested_message_from<std::out_of_range>([&] {
    strategy_.run(
        [&](ReplicaContext& ctx) { ctx.merge_call([](Strategy&) { throw std::out_of_range("in the merge"); }); });
  });
  EXPECT_EQ(text, "in the merge");
}

INSTANTIATE_TEST_SUITE_P(Shapes, CollectivesOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{2, 2},
                                           std::pair<int64_t, int>{3, 1}, std::pair<int64_t, int>{6, 2},
                                           std::pair<int64_t, int>{8, 1}, std::pair<int64_t, int>{8, 4},
                                           std::pair<int64_t, int>{9, 1}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

class CollectiveMisuse : public ::testing::Test {
 protected:
  template <class Fn>
  void expect_refused(Fn fn, std::string_view code, std::initializer_list<std::string_view> values = {},
                      const testing::Where& where = testing::Where::current()) {
    testing::expect_step_error<UsageError>([&] { strategy_.run(fn); }, code, values, where);
  }
  /// Replicas that do not meet alike: the values are of the account of who came to what.
  template <class Fn>
  void expect_mismatch(Fn fn, std::initializer_list<std::string_view> values,
                       const testing::Where& where = testing::Where::current()) {
    expect_refused(fn, "LS-MEETING-ORDER", values, where);
  }
  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 4}};
};

TEST_F(CollectiveMisuse, DifferentShapesNameBoth) {
  expect_mismatch(
      [](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, torch::ones({ctx.replica_id() == 2 ? 3 : 2})); },
      {"replica 2", "all_reduce(sum, Float [3])", "replicas 0 to 1", "replica 3", "all_reduce(sum, Float [2])"});
}

TEST_F(CollectiveMisuse, DifferentReductionsNameBoth) {
  expect_mismatch(
      [](ReplicaContext& ctx) {
        ctx.all_reduce(ctx.replica_id() == 0 ? Reduction::kSum : Reduction::kMax, torch::ones({2}));
      },
      {"replica 0", "all_reduce(sum, Float [2])", "replicas 1 to 3", "all_reduce(max, Float [2])"});
}

TEST_F(CollectiveMisuse, ACallThatOneReplicaSkipsIsNamedNotAHang) {
  expect_mismatch(
      [](ReplicaContext& ctx) {
        if (ctx.replica_id() != 1) ctx.all_reduce(Reduction::kSum, torch::ones({2}));
      },
      {"replica 1", "0 meetings", "replicas 2 to 3", "all_reduce(sum, Float [2])"});
}

TEST_F(CollectiveMisuse, GradientOnSomeReplicasOnlyIsNamed) {
  expect_mismatch(
      [](ReplicaContext& ctx) {
        ctx.all_reduce(Reduction::kSum, torch::ones({2}).requires_grad_(ctx.replica_id() == 3));
      },
      {"replica 3", "all_reduce(sum, Float [2], with gradient)", "replicas 0 to 2", "all_reduce(sum, Float [2])"});
}

// Lists of equal total length that are not alike would add elements of one tensor to those of another.
TEST_F(CollectiveMisuse, ListsWithGradientsInAnotherOrderShapeOrDtypeAreNamed) {
  const auto expect_lists_differ = [&](std::string_view call, auto list_of,
                                       const testing::Where& where = testing::Where::current()) {
    const auto step = [&](ReplicaContext& ctx) {
      std::vector<Tensor> list = list_of(ctx.replica_id() == 1);
      list.front().requires_grad_();
      ctx.all_reduce(Reduction::kSum, list);
    };
    expect_mismatch(step, {"replica 1", call}, where);
  };
  expect_lists_differ("all_reduce(sum, Float [3], Float [2], with gradient)", [](bool other) {
    return std::vector<Tensor>{torch::ones({other ? 3 : 2}), torch::ones({other ? 2 : 3})};
  });
  expect_lists_differ("all_reduce(sum, Float [3, 2], Float [1], with gradient)", [](bool other) {
    return std::vector<Tensor>{other ? torch::ones({3, 2}) : torch::ones({2, 3}), torch::ones({1})};
  });
  expect_lists_differ("all_reduce(sum, Float [2], Double [2], Float [2], with gradient)", [](bool other) {
    const Tensor one = torch::ones({2});
    const Tensor wide = torch::ones({2}, torch::kDouble);
    return other ? std::vector<Tensor>{one.clone(), wide, one} : std::vector<Tensor>{one.clone(), one, wide};
  });
}

TEST_F(CollectiveMisuse, WhatCannotBeReducedIsRefused) {
  expect_refused([](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, Tensor()); }, "LS-NOT-DENSE",
                 {"all_reduce", "undefined"});
  expect_refused([](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, torch::ones({2}, torch::kBool)); },
                 "LS-DTYPE", {"sum", "Bool"});
  expect_refused([](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, torch::eye(2).to_sparse()); },
                 "LS-NOT-DENSE", {"all_reduce", "sparse"});
  expect_refused([](ReplicaContext& ctx) { ctx.all_gather(torch::ones({})); }, "LS-AXIS",
                 {"all_gather", "axis 0", "0 dimensions"});
  expect_refused([](ReplicaContext& ctx) { ctx.all_gather(torch::ones({2}), 1); }, "LS-AXIS",
                 {"all_gather", "axis 1", "1 dimension"});
  expect_refused(
      [](ReplicaContext& ctx) {
        ctx.all_gather(torch::ones({2, ctx.replica_id() + 1}));
      },
      "LS-MEETING-ORDER", {"all_gather"});
  expect_refused([](ReplicaContext& ctx) { ctx.broadcast(4, torch::ones({2})); }, "LS-REPLICA-RANGE",
                 {"broadcast", "replica 4 of 4"});
  expect_refused([](ReplicaContext& ctx) { ctx.broadcast(2, Tensor()); }, "LS-NOT-DENSE",
                 {"broadcast", "undefined", "replica 2"});
}

TEST_F(CollectiveMisuse, BackwardOutsideOfTheStepIsNamed) {
  Tensor kept;
  strategy_.run([&](ReplicaContext& ctx) {
    const Tensor y = ctx.all_reduce(Reduction::kSum, torch::ones({2}).requires_grad_());
    if (ctx.replica_id() == 0) kept = y.sum();
  });
  testing::expect_error<UsageError>([&] { kept.backward(); }, "LS-OUTSIDE-STEP", {"all_reduce"});
}

}  // namespace
}  // namespace lockstep
