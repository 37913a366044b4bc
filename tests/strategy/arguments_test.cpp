// What users hand to a strategy: arguments of a run, functions and factories that can only be moved or that throw, and
// batches that they cut or make themselves.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::lanes;
using torch::Tensor;

class Arguments : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};
};

TEST_P(Arguments, SeveralOfARunEachReachTheReplicasByTheSameRules) {
  const auto own = strategy_.per_replica([](ReplicaId r) { return r.value(); });
  const auto names = strategy_.per_replica([](ReplicaId r) { return std::to_string(r.value()); });
  const auto results = strategy_.run(
      own, 100, std::tuple(names, 7.5), std::string("whole"),
      [](ReplicaContext& ctx, int64_t mine, int whole, const std::string& name, double half, const std::string& text) {
        EXPECT_EQ(mine, ctx.replica_id());
        EXPECT_EQ(name, std::to_string(mine));
        EXPECT_EQ(half, 7.5);
        EXPECT_EQ(text, "whole");
        return mine + whole;
      });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(results[r], 100 + r);
  EXPECT_EQ(strategy_.evaluate(own, 5, [](ReplicaContext&, int64_t mine, int x) { return mine * x; })[replicas() - 1],
            5 * (replicas() - 1));
  EXPECT_EQ(strategy_.run(std::tuple(), own, [](ReplicaContext&, int64_t mine) { return mine; })[0], 0);
}

TEST_P(Arguments, ABatchBesideOthersStillGivesTheShare) {
  const auto data =
      strategy_.distribute(data::from_tensors(torch::ones({8, 1}), torch::ones({8})), {.global_batch = 8});
  for (const auto& batch : data.epoch(0)) {
    const auto losses = strategy_.run(batch, 3.0, [](ReplicaContext& ctx, const Batch& part, double factor) {
      EXPECT_EQ(ctx.global_batch_size(), 8);
      if (part.size() == 0) return torch::zeros({});
      return ctx.scale_loss(part.input.mean() * factor);
    });
    EXPECT_NEAR(strategy_.reduce(Reduction::kSum, losses).item<double>(), 3, 1e-6);
  }
}

TEST_P(Arguments, OfAGenericStepAreThoseOfTheRunAndNoOthers) {
  const auto own = strategy_.per_replica([](ReplicaId r) { return r.value(); });
  // Their bodies do not compile with other arguments.
  const auto named = [](ReplicaContext& ctx, int64_t mine, double half) {
    return ctx.replica_id().value() + mine + half;
  };
  const auto variadic = [&](auto&&... args) { return named(args...); };
  EXPECT_EQ(strategy_.run(own, 0.5, variadic)[replicas() - 1], 2.0 * static_cast<double>(replicas() - 1) + 0.5);
  EXPECT_EQ(strategy_.evaluate(std::tuple(own, 0.5), variadic)[0], 0.5);
  EXPECT_EQ(strategy_.run([](auto&&... args) { return (args.replica_id().value() + ...); })[0], 0);
  EXPECT_EQ(strategy_.run(own, [](auto& ctx, auto&&... rest) { return ctx.num_replicas() + (rest + ...); })[0],
            replicas());
  EXPECT_EQ(strategy_.run(own, [](auto& ctx, const auto& mine) { return ctx.replica_id() == mine; })[0], true);
  auto mutable_step = [calls = 0](auto&&... args) mutable { return ++calls, static_cast<int>(sizeof...(args)); };
  EXPECT_EQ(OneDeviceStrategy().run(own[0], 3, mutable_step)[0], 3);
}

struct Moved {
  explicit Moved(int64_t what) : kept(std::make_unique<int64_t>(what)) {}
  std::unique_ptr<int64_t> kept;
};

TEST_P(Arguments, ATupleThatStepsReturnBecomesATupleOfPerReplica) {
  const auto [ids, even, moved] = strategy_.run([](ReplicaContext& ctx) {
    const int64_t id = ctx.replica_id().value();
    return std::tuple(torch::full({2}, id), id % 2 == 0, Moved(10 * id));
  });
  static_assert(std::is_same_v<decltype(ids), const PerReplica<Tensor>>);
  static_assert(std::is_same_v<decltype(even), const PerReplica<bool>>);
  ASSERT_EQ(ids.size(), static_cast<std::size_t>(replicas()));
  for (int64_t r = 0; r < replicas(); ++r) {
    EXPECT_EQ(ids[r].sum().item<int64_t>(), 2 * r);
    EXPECT_EQ(even[r], r % 2 == 0);
    EXPECT_EQ(*moved[r].kept, 10 * r);
  }
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, ids)[0].item<int64_t>(), replicas() * (replicas() - 1) / 2);
  // References become values, as they do where one alone is returned.
  std::vector<double> sums(static_cast<std::size_t>(replicas()));
  const std::tuple<PerReplica<double>, PerReplica<double>> twice = strategy_.evaluate([&](ReplicaContext& ctx) {
    double& sum = sums[static_cast<std::size_t>(ctx.replica_id().value())];
    sum = 1.5;
    return std::tie(sum, sum);
  });
  sums.assign(sums.size(), 0);
  EXPECT_EQ(std::get<1>(twice)[replicas() - 1], 1.5);
  EXPECT_EQ(std::get<0>(strategy_.run([](ReplicaContext&) { return std::tuple(7); }))[0], 7);
  static_assert(std::is_same_v<decltype(strategy_.run([](ReplicaContext&) { return std::tuple<>(); })), std::tuple<>>);
  EXPECT_EQ(strategy_.run([](ReplicaContext&) { return std::tuple<>(); }), std::tuple<>());
  EXPECT_EQ(strategy_.run([](ReplicaContext&) { return std::pair(1, 2); })[0].second, 2) << "a pair is one value";
}

TEST_P(Arguments, FunctionsMayBeMoveOnlyConstOrPlain) {
  auto kept = std::make_unique<int64_t>(4);
  EXPECT_EQ(strategy_.run([kept = std::move(kept)](ReplicaContext&) { return *kept; })[0], 4);
  const auto constant = [](ReplicaContext&, int x) { return x; };
  EXPECT_EQ(strategy_.run(2, constant)[0], 2);
  struct Plain {
    static int64_t step(ReplicaContext& ctx) { return ctx.replica_id().value(); }
  };
  EXPECT_EQ(strategy_.run(Plain::step)[0], 0);
  EXPECT_EQ(strategy_.run(&Plain::step)[replicas() - 1], replicas() - 1);
}

TEST_P(Arguments, AFactoryMayBeMoveOnlyAndIsKeptForExports) {
  auto width = std::make_unique<int64_t>(3);
  const auto model = strategy_.make_module([width = std::move(width)] { return torch::nn::Linear(*width, 1); });
  EXPECT_EQ(model.export_module()->weight.size(1), 3);
}

TEST_P(Arguments, AFactoryThatThrowsHalfWayLeavesNothing) {
  for (int64_t last = 0; last < replicas(); ++last) {
    int64_t calls = 0;
    EXPECT_THROW(strategy_.make_module([&] {
      if (calls++ == last) throw std::runtime_error("no more");
      return torch::nn::Linear(2, 1);
    }),
                 std::runtime_error);
    EXPECT_TRUE(strategy_.variables().empty());
  }
  EXPECT_THROW(strategy_.make_variable([]() -> Tensor { throw std::runtime_error("no"); }, {.name = "model.weight"}),
               std::runtime_error);
  const auto model = strategy_.make_module([] { return torch::nn::Linear(2, 1); });  // the name is free
  EXPECT_EQ(strategy_.variables().size(), 2u);
  EXPECT_THROW(strategy_.make_optimizer(model, torch::optim::SGDOptions(-1)), UsageError);
  EXPECT_EQ(strategy_.variables().size(), 2u);
  const auto optimizer = strategy_.make_optimizer(model, torch::optim::AdamOptions(0.1));
  EXPECT_EQ(strategy_.variables().size(), 6u);
}

TEST_P(Arguments, APerReplicaOfAnotherSizeNamesTheCall) {
  const PerReplica<int> wrong(std::vector<int>(static_cast<std::size_t>(replicas() + 1)));
  const auto nothing = [](ReplicaContext&, int) {};
  const std::string given = std::to_string(replicas() + 1) + " values";
  const std::string wanted = internal::counted(replicas(), "replica");
  expect_error<UsageError>([&] { strategy_.run(wrong, nothing); }, "LS-PER-REPLICA-SIZE", {"run()", given, wanted});
  expect_error<UsageError>([&] { strategy_.evaluate(wrong, nothing); }, "LS-PER-REPLICA-SIZE",
                           {"evaluate()", given, wanted});
}

TEST_P(Arguments, ReduceTakesNumbers) {
  const auto n = replicas();
  const auto halves = strategy_.run([](ReplicaContext& ctx) { return static_cast<double>(ctx.replica_id()) + 0.5; });
  const Tensor sum = strategy_.reduce(Reduction::kSum, halves);
  EXPECT_EQ(sum.dim(), 0);
  EXPECT_EQ(sum.scalar_type(), torch::kDouble);
  EXPECT_DOUBLE_EQ(sum.item<double>(), static_cast<double>(n * n) / 2);
  const auto floats = strategy_.per_replica([](ReplicaId r) { return static_cast<float>(r.value()); });
  EXPECT_DOUBLE_EQ(strategy_.reduce(Reduction::kMean, floats).item<double>(), static_cast<double>(n - 1) / 2);
  const auto large = strategy_.per_replica([](ReplicaId r) { return (int64_t{1} << 60) + r.value(); });
  EXPECT_EQ(strategy_.reduce(Reduction::kMax, large).item<int64_t>(), (int64_t{1} << 60) + n - 1);
  const auto first = strategy_.per_replica([](ReplicaId r) { return r == 0; });
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, first).item<int64_t>(), 1) << "how many are true";
  EXPECT_EQ(strategy_.reduce(Reduction::kMin, strategy_.per_replica([](ReplicaId) { return 3; })).scalar_type(),
            torch::kLong);
}

TEST_P(Arguments, SplitCutsWholeTensorsAsDistributeDoes) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, replicas(), 2 * replicas() + 1, int64_t{23}}) {
    const Tensor input = torch::arange(size * 2, torch::kFloat).view({size, 2}).requires_grad_();
    const Tensor target = torch::arange(size);
    const auto parts = strategy_.split(input, target);
    std::vector<Tensor> inputs, targets, ids;
    for (const Batch& part : parts) {
      EXPECT_EQ(part.global_size, size);
      EXPECT_EQ(part.size(), part.input.size(0));
      EXPECT_EQ(part.ids.scalar_type(), torch::kLong);
      EXPECT_FALSE(part.input.requires_grad());
      EXPECT_FALSE(part.input.is_alias_of(input));
      inputs.push_back(part.input), targets.push_back(part.target), ids.push_back(part.ids);
      EXPECT_LE(parts.begin()->size() - part.size(), 1) << "the first ones are the larger";
    }
    EXPECT_TRUE(torch::equal(torch::cat(inputs), input));
    EXPECT_TRUE(torch::equal(torch::cat(targets), target));
    EXPECT_TRUE(torch::equal(torch::cat(ids), torch::arange(size)));
    if (size == 0) continue;
    const auto dealt = strategy_.distribute(data::from_tensors(input, target), {.global_batch = size});
    const auto whole = *dealt.epoch(0).begin();
    for (int64_t r = 0; r < replicas(); ++r) EXPECT_TRUE(torch::equal(whole[r].ids, parts[r].ids));
  }
}

TEST_P(Arguments, SplitTrainsLikeOneDeviceAndNeedsNoTarget) {
  const auto parts = strategy_.split(torch::arange(7, torch::kDouble).view({7, 1}).t().t());
  const auto losses = strategy_.run(parts, [](ReplicaContext& ctx, const Batch& part) {
    EXPECT_FALSE(part.target.defined());
    EXPECT_EQ(ctx.global_batch_size(), 7);
    return part.size() == 0 ? torch::zeros({}, torch::kDouble) : ctx.scale_loss(part.input.mean());
  });
  EXPECT_NEAR(strategy_.reduce(Reduction::kSum, losses).item<double>(), 3, 1e-12);
}

TEST_P(Arguments, SplitCutsAlongAnyAxis) {
  const Tensor input = torch::randn({12, 5, 3});  // 12 steps of 5 sequences
  const Tensor target = torch::randn({12, 5});
  for (const int64_t axis : {1, -1}) {
    const Tensor whole = axis == 1 ? input : input.transpose(1, 2);
    const auto parts = strategy_.split(whole, target, {.axis = axis});
    std::vector<Tensor> inputs, targets;
    int64_t samples = 0;
    for (const Batch& part : parts) {
      EXPECT_EQ(part.global_size, 5);
      EXPECT_EQ(part.samples(), part.input.size(axis));
      EXPECT_TRUE(part.input.is_contiguous());
      inputs.push_back(part.input), targets.push_back(part.target);
      samples += part.samples();
    }
    EXPECT_EQ(samples, 5);
    EXPECT_TRUE(torch::equal(torch::cat(inputs, axis), whole));
    EXPECT_TRUE(torch::equal(torch::cat(targets, 1), target));
  }
  // A target that has no time, and weights by samples.
  const Tensor labels = torch::arange(5, torch::kFloat);
  const auto parts = strategy_.split(input, labels, {.axis = 1, .axes = {{"target", 0}}});
  const auto losses = strategy_.run(parts, [](ReplicaContext& ctx, const Batch& part) {
    EXPECT_EQ(part.target.size(0), part.input.size(1));
    return ctx.scale_loss(part.target.mean());
  });
  EXPECT_NEAR(strategy_.reduce(Reduction::kSum, losses).item<double>(), 2, 1e-6);
}

TEST_P(Arguments, SplitTakesTensorsByNameOrInAList) {
  const Tensor x = torch::randn({5, 2}), y = torch::randn({5}), reward = torch::randn({5}), mask = torch::ones({5, 2});
  const auto by_name = strategy_.split({{"input", x}, {"target", y}, {"reward", reward}, {"mask/left", mask}});
  const auto list = strategy_.split(std::vector<Tensor>{x, y, reward, mask});
  const auto braces = strategy_.split({x, y, reward, mask});
  const auto tuple = strategy_.split(std::tuple(x, y, reward, mask), {.axis = 0});
  const auto nameless = strategy_.split(std::map<std::string, Tensor>{{"reward", reward}});
  int64_t begin = 0;
  for (int64_t r = 0; r < replicas(); ++r) {
    const int64_t size = by_name[r].size();
    EXPECT_TRUE(torch::equal(by_name[r].input, x.narrow(0, begin, size)));
    EXPECT_TRUE(torch::equal(by_name[r].more.at("reward"), reward.narrow(0, begin, size)));
    EXPECT_TRUE(torch::equal(by_name[r].more.at("mask/left"), mask.narrow(0, begin, size)));
    for (const Batch& same : {list[r], braces[r], tuple[r]}) {
      EXPECT_TRUE(torch::equal(same.target, by_name[r].target));
      EXPECT_TRUE(torch::equal(same.more.at("2"), by_name[r].more.at("reward")));
      EXPECT_TRUE(torch::equal(same.more.at("3"), by_name[r].more.at("mask/left")));
    }
    EXPECT_FALSE(nameless[r].input.defined());
    EXPECT_EQ(nameless[r].size(), size);
    begin += size;
  }
  EXPECT_EQ(begin, 5);
  EXPECT_TRUE(torch::equal(strategy_.split({x, y})[0].target, list[0].target));
  EXPECT_TRUE(
      torch::equal(strategy_.split({x.t(), mask.t()}, {.axis = 1})[0].target, mask.t().narrow(1, 0, list[0].size())));
}

TEST_P(Arguments, SplitRefusesAnAxisThatIsNotThere) {
  const Tensor x = torch::ones({3, 4});
  const auto refused = [&](const auto& split, std::string_view code, std::initializer_list<std::string_view> values) {
    expect_error<UsageError>(split, code, values);
  };
  refused([&] { strategy_.split(x, {}, {.axis = 2}); }, "LS-BATCH", {"input Float [3, 4]", "axis 2"});
  refused([&] { strategy_.split(x, torch::ones({4}), {.axis = 1}); }, "LS-BATCH", {"target Float [4]", "axis 1"});
  refused(
      [&] {
        strategy_.split(x, torch::ones({3}), {.axis = 1, .axes = {{"target", 0}}});
      },
      "LS-BATCH", {"4 samples", "of 3"});
  refused([&] { strategy_.split(x, {}, {.axes = {{"mask", 1}}}); }, "LS-OPTION", {"'mask'"});
  refused([&] { strategy_.split(std::vector<Tensor>{}); }, "LS-BATCH", {"no tensors"});
  refused([&] { strategy_.split({{"input", x}, {"mask", Tensor()}}); }, "LS-NOT-DENSE", {"'mask'"});
}

TEST_P(Arguments, SplitRefusesWhatHasNoRows) {
  const auto expect_refused = [&](const Tensor& input, const Tensor& target, std::string_view code,
                                  std::initializer_list<std::string_view> values,
                                  const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { strategy_.split(input, target); }, code, values, where);
  };
  const char* call = "Strategy::split";
  expect_refused(torch::ones({3, 2}), torch::ones({4}), "LS-BATCH", {call, "input Float [3, 2]", "target Float [4]"});
  expect_refused(torch::ones({}), {}, "LS-BATCH", {call, "input"});
  expect_refused(torch::ones({3}), torch::ones({}), "LS-BATCH", {call, "target"});
  expect_refused({}, torch::ones({3}), "LS-NOT-DENSE", {call, "undefined", "input"});
  expect_refused(torch::ones({3, 2}).to_sparse(), {}, "LS-NOT-DENSE", {call, "sparse", "input"});
  expect_refused(torch::ones({3}, torch::kMeta), {}, "LS-NOT-HOST", {call, "meta", "input"});
}

TEST_P(Arguments, ABatchMadeByHandWithoutItsGlobalSizeNamesTheField) {
  const auto parts = strategy_.per_replica([](ReplicaId) { return Batch{.input = torch::ones({2, 1})}; });
  const auto scale = [](ReplicaContext& ctx, const Batch& part) { return ctx.scale_loss(part.input.mean()); };
  const auto size = [](ReplicaContext& ctx, const Batch&) { return ctx.global_batch_size(); };
  const auto expect_refused = [&](const auto& step, std::string_view call) {
    const auto error = error_from<ReplicaError>([&] { strategy_.run(parts, step); });
    expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-BATCH",
                             {call, "Batch::global_size", "0", "2 samples"});
  };
  expect_refused(scale, "scale_loss(mean_loss)");
  expect_refused(size, "global_batch_size()");
  // Who does not need it may leave it out.
  strategy_.evaluate(parts, [](ReplicaContext&, const Batch& part) { return part.input.mean(); });
}

TEST_P(Arguments, ABatchWhosePartsContradictEachOtherIsRefusedBeforeAnyReplicaRuns) {
  std::atomic<bool> ran{false};
  const auto step = [&](ReplicaContext&, const Batch&) { ran = true; };
  const auto batch_of = [&](int64_t first, int64_t others) {
    return strategy_.per_replica([=](ReplicaId r) {
      return Batch{.input = torch::ones({2, 1}), .global_size = r == 0 ? first : others};
    });
  };
  const int64_t all = 2 * replicas();
  for (const auto& [first, others] : std::vector<std::pair<int64_t, int64_t>>{{all - 1, all - 1}, {-1, -1}, {all, 0}}) {
    if (replicas() == 1 && first == all) continue;
    const std::string size = std::to_string(first);
    expect_error<UsageError>([&, a = first, b = others] { strategy_.run(batch_of(a, b), step); }, "LS-BATCH",
                             {"run()", "Batch::global_size", size});
  }
  EXPECT_FALSE(ran);
  strategy_.run(batch_of(all, all), step);
  strategy_.run(batch_of(4 * all, 4 * all), step);  // a micro-batch of a larger one
  EXPECT_EQ(strategy_.step(), 2);
}

TEST_P(Arguments, WhatChangesNothingIsConst) {
  const Strategy& strategy = strategy_;
  const auto ones = strategy.per_replica([](ReplicaId) { return torch::ones({1}); });
  EXPECT_EQ(strategy.gather(ones).size(0), replicas());
  EXPECT_EQ(strategy.reduce(Reduction::kSum, ones).item<double>(), static_cast<double>(replicas()));
  EXPECT_EQ(strategy.broadcast(0, torch::ones({})).item<double>(), 1);
  EXPECT_EQ(strategy.local_results(ones).size(), ones.size());
  EXPECT_EQ(strategy.on_chief([] { return 1; }), 1);
  EXPECT_EQ(strategy.num_workers(), 1);
  EXPECT_EQ(strategy.worker_index(), 0);
  EXPECT_TRUE(strategy.is_chief());
}

INSTANTIATE_TEST_SUITE_P(Shapes, Arguments,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{2, 2},
                                           std::pair<int64_t, int>{5, 1}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

}  // namespace
}  // namespace lockstep
