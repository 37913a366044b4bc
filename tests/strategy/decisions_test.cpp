// A strategy is four objects: topologies, placements, reducers and synchronizations that users write, and which of
// their answers are refused.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <set>

#include "lockstep/replica/pool/lanes.h"
#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using torch::Tensor;

class Custom : public Strategy {
 public:
  explicit Custom(StrategySetup setup) : Strategy(std::move(setup)) {}
};

struct FixedTopology : Topology {
  explicit FixedTopology(Lanes given) : lanes_given(std::move(given)) {}
  Lanes lanes(const Host&) const override { return lanes_given; }
  Lanes lanes_given;
};

std::shared_ptr<Topology> on_lanes(int64_t replicas, int count) {
  return std::make_shared<HostTopology>(lanes(count), replicas, /*pinned=*/false);
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(Topology, OfOnesOwnDecidesLanesReplicasAndCores) {
  const std::vector<int> cores = internal::cores_of_this_process();
  Custom strategy({.name = "MyStrategy",
                   .topology = std::make_shared<FixedTopology>(Lanes{
                       .devices = {"cpu:4", "cpu:2"}, .replicas = 6, .cores = {{cores.back()}, {cores.back()}}})});
  EXPECT_EQ(strategy.num_replicas(), 6);
  EXPECT_EQ(strategy.devices(), (std::vector<std::string>{"cpu:4", "cpu:2"}));
  expect_parts(strategy.describe(), {"MyStrategy: 6 replicas on 2 lanes [cpu:4, cpu:2]", "lanes pinned"});
  EXPECT_EQ(strategy.run([](ReplicaContext& ctx) { return ctx.replica_id().value(); })[5], 5);
}

TEST(Topology, ThatBreaksTheRulesOfLanesIsRefused) {
  const auto expect_refused = [](Lanes given, std::string_view code, std::initializer_list<std::string_view> values,
                                 const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { Custom({.name = "Mine", .topology = std::make_shared<FixedTopology>(given)}); },
                             code, values, where);
  };
  expect_refused({}, "LS-LANES", {"topology"});
  expect_refused({.devices = {"cpu:0"}, .replicas = 0}, "LS-LANES", {"0 replicas", "1 lane [cpu:0]"});
  expect_refused({.devices = {"cpu:0", "cpu:1"}, .replicas = 1}, "LS-LANES", {"1 replica", "2 lanes [cpu:0, cpu:1]"});
  expect_refused({.devices = {"cpu:0", "cpu:0"}, .replicas = 2}, "LS-LANES", {"device 'cpu:0'"});
  expect_refused({.devices = {"cpu:0"}, .replicas = 1, .cores = {{100000}}}, "LS-LANES", {"lanes [cpu:0]", "100000"});
  expect_refused({.devices = {"cpu:0", "cpu:1"}, .replicas = 2, .cores = {{0}}}, "LS-LANES",
                 {"cores", "lanes [cpu:0, cpu:1]"});
  expect_error<UsageError>([] { Custom({}); }, "LS-OPTION", {"name"});
}

struct PairPlacement : Placement {
  std::string describe() const override { return "one copy for each two replicas"; }
  std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& all) const override {
    seen.push_back(variable.name + (variable.parameter ? " parameter " : " ") + std::to_string(variable.index));
    std::vector<VariableCopy> result;
    for (int64_t r = 0; r < all.replicas; r += 2) {
      result.push_back({"cpu:" + std::to_string(r / 2), {r}});
      if (r + 1 < all.replicas) result.back().replicas.push_back(r + 1);
    }
    return result;
  }
  mutable std::vector<std::string> seen;
};

TEST(Placement, OfOnesOwnDecidesWhichReplicasShareACopy) {
  const auto placement = std::make_shared<PairPlacement>();
  Custom strategy({.name = "Pairs", .topology = on_lanes(5, 1), .placement = placement});
  const Variable variable =
      strategy.make_variable(torch::ones({2}), {.name = "v", .aggregation = VariableAggregation::kSum});
  const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
  EXPECT_EQ(placement->seen, (std::vector<std::string>{"v 0", "model.weight parameter 1", "model.bias parameter 2"}));
  for (const Variable& one : {variable, model.variables().front()}) {
    const auto addresses = strategy.run([&](ReplicaContext& ctx) { return one.value(ctx).data_ptr(); });
    EXPECT_EQ(addresses[0], addresses[1]);
    EXPECT_EQ(addresses[2], addresses[3]);
    EXPECT_EQ((std::set<void*>{addresses[0], addresses[2], addresses[4]}).size(), 3u);
  }
  expect_parts(strategy.describe_variables(), {"cpu:0, cpu:1, cpu:2"});
  strategy.run([&](ReplicaContext& ctx) { variable.assign_add(ctx, torch::ones({2})); });
  for (const Tensor& component : variable.components()) EXPECT_TRUE(torch::equal(component, torch::full({2}, 6.0f)));
}

TEST(Placement, ThatLeavesOutAReplicaOrNamesOneTwiceIsRefused) {
  struct Bad : Placement {
    explicit Bad(std::vector<VariableCopy> all) : given(std::move(all)) {}
    std::string describe() const override { return "badly"; }
    std::vector<VariableCopy> copies(const NewVariable&, const Lanes&) const override { return given; }
    std::vector<VariableCopy> given;
  };
  for (const std::vector<VariableCopy>& copies : std::vector<std::vector<VariableCopy>>{
           {}, {{"cpu", {0}}}, {{"cpu", {0, 1}}, {"cpu", {1}}}, {{"cpu", {0, 2}}}, {{"cpu", {0, 1}}, {"cpu", {}}}}) {
    Custom strategy({.name = "Bad", .topology = on_lanes(2, 1), .placement = std::make_shared<Bad>(copies)});
    expect_error<UsageError>([&] { strategy.make_variable(torch::ones({2}), {.name = "v"}); }, "LS-PLACEMENT",
                             {"\"badly\"", "variable 'v'", "2 replicas"});
    expect_error<UsageError>([&] { strategy.make_module([] { return torch::nn::Linear(2, 1); }); }, "LS-PLACEMENT",
                             {"\"badly\"", "variable 'model.weight'", "2 replicas"});
    EXPECT_TRUE(strategy.variables().empty());
  }
  Custom gpu({.name = "Gpu",
              .topology = on_lanes(1, 1),
              .placement = std::make_shared<Bad>(std::vector<VariableCopy>{{"cuda:0", {0}}})});
  expect_error<UsageError>([&] { gpu.make_variable(torch::ones({2})); }, "LS-NOT-HOST", {"device 'cuda:0'"});
}

/// What the tree does, by another hand; counts.
struct CountingReducer : Reducer {
  std::string describe() const override { return "as a test counts"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    ++calls;
    for (const Tensor& value : values) EXPECT_FALSE(value.requires_grad());
    return tree.reduce(reduction, values);
  }
  TreeReducer tree;
  mutable std::atomic<int64_t> calls{0};
};

std::vector<Tensor> trained(Strategy& strategy, const torch::optim::SGDOptions& options, int steps,
                            StepOptions step = {}) {
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  const auto optimizer = strategy.make_optimizer(model, options);
  torch::manual_seed(1);
  const auto data = strategy.distribute(data::from_tensors(torch::randn({40, 3}), torch::randn({40, 2})),
                                        {.global_batch = 10, .shuffle = true});
  int done = 0;
  for (int64_t epoch = 0; done < steps; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      if (done++ == steps) break;
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(torch::mse_loss(model(ctx)->forward(part.input), part.target)).backward();
        optimizer.step(ctx, step);
      });
    }
  }
  std::vector<Tensor> values;
  for (const Variable& variable : model.variables()) values.push_back(variable.read());
  return values;
}

TEST(Reducer, OfOnesOwnAddsGradientsAndAllElse) {
  const auto reducer = std::make_shared<CountingReducer>();
  Custom strategy({.name = "Counting", .topology = on_lanes(4, 2), .reducer = reducer, .seed = 5});
  expect_parts(strategy.describe(), {"added as a test counts"});
  const auto values = trained(strategy, torch::optim::SGDOptions(0.1).momentum(0.9), 10, {.clip_global_norm = 1.0});
  EXPECT_EQ(reducer->calls, 2 * 10);  // two variables, ten steps
  MirroredStrategy mirrored({.devices = lanes(1), .replicas = 4, .seed = 5});
  const auto expected = trained(mirrored, torch::optim::SGDOptions(0.1).momentum(0.9), 10, {.clip_global_norm = 1.0});
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::equal(values[i], expected[i]));

  const Variable sum = strategy.make_variable(torch::zeros({2}), {.aggregation = VariableAggregation::kMean});
  const Variable on_read = strategy.make_variable(
      torch::zeros({2}),
      {.synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kSum});
  reducer->calls = 0;
  strategy.run([&](ReplicaContext& ctx) {
    const Tensor own = torch::full({2}, static_cast<float>(ctx.replica_id().value()));
    EXPECT_TRUE(torch::equal(ctx.all_reduce(Reduction::kSum, own), torch::full({2}, 6.0f)));
    sum.assign(ctx, own);
    on_read.assign(ctx, own);
  });
  EXPECT_EQ(reducer->calls, 2);
  EXPECT_TRUE(torch::equal(on_read.read(), torch::full({2}, 6.0f)));
  EXPECT_TRUE(torch::equal(sum.read(), torch::full({2}, 1.5f)));
  EXPECT_TRUE(torch::equal(strategy.reduce(Reduction::kMax, on_read.components()), torch::full({2}, 3.0f)));
  EXPECT_EQ(reducer->calls, 4);
}

TEST(Reducer, ThatGivesAnotherShapeOrDtypeIsNamed) {
  struct Bad : Reducer {
    std::string describe() const override { return "by guesswork"; }
    Tensor reduce(Reduction, std::span<const Tensor> values) const override {
      return values.front().sum().to(torch::kDouble);
    }
  };
  Custom strategy({.name = "Bad", .topology = on_lanes(2, 1), .reducer = std::make_shared<Bad>()});
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const Tensor before = model.variables().front().read();
  const auto values = strategy.per_replica([](ReplicaId) { return torch::ones({2}); });
  const auto meet = [](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, torch::ones({2})); };
  const auto step = [&](ReplicaContext& ctx) {
    model(ctx)->forward(torch::ones({1, 3})).sum().backward();
    optimizer.step(ctx);
  };
  expect_error<UsageError>([&] { strategy.reduce(Reduction::kSum, values); }, "LS-REDUCER",
                           {"by guesswork", "Double []", "2 tensors of Float [2]", "sum"});
  expect_step_error<UsageError>([&] { strategy.run(meet); }, "LS-REDUCER",
                                {"by guesswork", "Double []", "Float", "sum"});
  expect_step_error<UsageError>([&] { strategy.run(step); }, "LS-REDUCER",
                                {"by guesswork", "Double []", "Float", "sum"});
  EXPECT_TRUE(torch::equal(model.variables().front().read(), before));
}

struct SlotsElsewhere : PairPlacement {
  std::string slot_device(const NewVariable& slot, std::span<const std::string> devices) const override {
    asked.push_back(slot.name + " of " + slot.slot_of + " on " + devices.front());
    return "cpu:1";
  }
  mutable std::vector<std::string> asked;
};

TEST(Placement, SaysWhereAnOptimizersSlotsAre) {
  const auto placement = std::make_shared<SlotsElsewhere>();
  Custom strategy({.name = "Mine", .topology = on_lanes(4, 2), .placement = placement});
  const std::vector<Variable> v{strategy.make_variable(torch::ones({2}), {.name = "v"})};
  const auto optimizer = strategy.make_optimizer(v, torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_EQ(placement->asked, (std::vector<std::string>{"v/momentum_buffer of v on cpu:0"}));
  EXPECT_EQ(optimizer.slots().front().state().where(), "cpu:1");
}

struct EveryK : Synchronization {
  explicit EveryK(int64_t every) : k(every) {}
  std::string describe() const override { return "every k steps"; }
  bool trains_locally(const NewVariable& variable) const override { return variable.parameter; }
  bool averages_after(int64_t steps) const override { return steps % k == 0; }
  int64_t k;
};

StrategySetup local_sgd(int64_t replicas, int num_lanes, int64_t k) {
  return {.name = "Apart",
          .topology = on_lanes(replicas, num_lanes),
          .synchronization = std::make_shared<EveryK>(k),
          .seed = 5};
}

TEST(TrainedLocally, AveragedAfterEachStepOfSgdIsTheSynchronousStep) {
  for (const int64_t replicas : {1, 3, 4}) {
    Custom strategy(local_sgd(replicas, 1, 1));
    MirroredStrategy mirrored({.devices = lanes(1), .replicas = replicas, .seed = 5});
    const auto values = trained(strategy, torch::optim::SGDOptions(0.1), 20);
    const auto expected = trained(mirrored, torch::optim::SGDOptions(0.1), 20);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(torch::allclose(values[i], expected[i], 1e-5, 1e-6)) << values[i] << expected[i];
    }
  }
}

TEST(TrainedLocally, ReplicasDifferUntilTheyMeet) {
  Custom strategy(local_sgd(4, 2, 3));
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(1e-3).momentum(0.9));
  const Variable weight = model.variables().front();
  EXPECT_EQ(weight.synchronization(), VariableSynchronization::kOnRead);
  expect_parts(strategy.describe(), {"parameters meet every k steps"});
  for (int step = 1; step <= 6; ++step) {
    strategy.run([&](ReplicaContext& ctx) {
      const Tensor input =
          torch::full({2, 3}, static_cast<float>(1 + ctx.replica_id().value() * ctx.replica_id().value()));
      (model(ctx)->forward(input).square().mean() / 4).backward();
      EXPECT_GT(optimizer.step(ctx).global_norm, 0);
    });
    const auto components = weight.components();
    EXPECT_EQ(torch::equal(components[0], components[3]), step % 3 == 0) << step;
    Tensor mean = torch::zeros({2, 3}, torch::kDouble);
    for (const Tensor& component : components) mean += component.to(torch::kDouble) / 4;
    EXPECT_TRUE(torch::allclose(weight.read(), mean.to(torch::kFloat), 1e-6));
    EXPECT_FALSE(torch::equal(optimizer.slots().front().components()[0], optimizer.slots().front().components()[3]));
  }
}

TEST(TrainedLocally, HasTheSameBitsOnAnyLanes) {
  std::vector<std::vector<Tensor>> all;
  for (const int num_lanes : {1, 2, 4}) {
    Custom strategy(local_sgd(4, num_lanes, 3));
    all.push_back(trained(strategy, torch::optim::SGDOptions(0.1).momentum(0.9), 20, {.clip_global_norm = 0.5}));
  }
  for (const auto& values : all) {
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::equal(values[i], all.front()[i]));
  }
}

TEST(TrainedLocally, ClippingIsByEachReplicasOwnNorm) {
  Custom strategy(local_sgd(2, 1, 100));
  const auto model = strategy.make_module([] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(1));
  const float before = model.variables().front().read().item<float>();
  const auto norms = strategy.run([&](ReplicaContext& ctx) {
    const float slope = ctx.replica_id() == 0 ? 0.25f : 8.0f;
    (model(ctx)->forward(torch::full({1, 1}, slope)).sum() / 2).backward();
    return optimizer.step(ctx, {.clip_global_norm = 1.0}).global_norm;
  });
  EXPECT_FLOAT_EQ(norms[0], 0.25);
  EXPECT_FLOAT_EQ(norms[1], 8);
  const auto components = model.variables().front().components();
  EXPECT_NEAR(before - components[0].item<float>(), 0.25, 1e-5);
  EXPECT_NEAR(before - components[1].item<float>(), 1, 1e-5);
}

TEST(TrainedLocally, AFailedRunIsUndoneButForACompletedStep) {
  Custom strategy(local_sgd(2, 1, 100));
  const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.1));
  const auto backward = [&](ReplicaContext& ctx) { model(ctx)->forward(torch::ones({1, 2})).sum().backward(); };
  const auto state = [&] {
    std::vector<Tensor> values;
    for (const Variable& variable : strategy.variables()) {
      for (const Tensor& component : variable.components()) values.push_back(component);
    }
    return values;
  };
  const auto same = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Tensor& x, const Tensor& y) { return torch::equal(x, y); });
  };
  const auto before = state();
  EXPECT_THROW(strategy.run([&](ReplicaContext& ctx) {
    const torch::NoGradGuard no_grad;
    model(ctx)->weight.add_(1);
    throw std::runtime_error("before the step");
  }),
               ReplicaError);
  EXPECT_TRUE(same(state(), before));
  EXPECT_THROW(strategy.run([&](ReplicaContext& ctx) {
    backward(ctx);
    optimizer.step(ctx);
    throw std::runtime_error("after the step");
  }),
               ReplicaError);
  const auto stepped = state();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(torch::equal(stepped[i], before[i]));
  EXPECT_THROW(strategy.run([&](ReplicaContext&) { throw std::runtime_error("again"); }), ReplicaError);
  EXPECT_TRUE(same(state(), stepped));
}

TEST(TrainedLocally, NotFiniteGradientsNameTheReplicaAndOtherMemoryIsRefused) {
  Custom strategy(local_sgd(3, 1, 100));
  const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto step = [&](ReplicaContext& ctx) {
    model(ctx)->forward(torch::full({1, 2}, ctx.replica_id() == 1 ? INFINITY : 1.0f)).sum().backward();
    optimizer.step(ctx, {.check_finite = true});
  };
  const auto not_finite = error_from<ReplicaError>([&] { strategy.run(step); });
  expect_error<NonFiniteError>([&] { std::rethrow_if_nested(not_finite); }, "LS-NOT-FINITE",
                               {"'model.weight'", "replica 1", "step 0"});
  const auto set_data = [&](ReplicaContext& ctx) {
    if (ctx.replica_id() == 2) model(ctx)->weight.set_data(torch::zeros({1, 2}));
  };
  const auto foreign = error_from<ReplicaError>([&] { strategy.run(set_data); });
  expect_error<DivergenceError>([&] { std::rethrow_if_nested(foreign); }, "LS-FOREIGN-WRITE",
                                {"variable 'model.weight'", "replica 2", "other memory"});
}

TEST(CentralStorage, HasTheBitsOfMirrored) {
  CentralStorageStrategy central({.devices = lanes(2), .replicas = 4, .seed = 5});
  MirroredStrategy mirrored({.devices = lanes(1), .replicas = 4, .seed = 5});
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto values = trained(central, options, 12);
  const auto expected = trained(mirrored, options, 12);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::equal(values[i], expected[i]));
}

TEST(CentralStorage, KeepsOneCopyInItsStorageWhereReplicasReadIt) {
  CentralStorageStrategy strategy({.devices = lanes(2), .replicas = 4, .storage = "cpu:1"});
  const Variable variable = strategy.make_variable(torch::ones({2}), {.name = "v"});
  const auto addresses = strategy.run([&](ReplicaContext& ctx) { return variable.value(ctx).data_ptr(); });
  for (void* address : addresses) EXPECT_EQ(address, addresses[0]);
  expect_parts(strategy.describe(), {"CentralStorageStrategy: 4 replicas", "in storage cpu:1"});
  expect_parts(strategy.describe_variables(), {"cpu:1"});
  const auto expect_refused = [](const char* storage, std::string_view code, std::string_view quoted,
                                 const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { CentralStorageStrategy({.replicas = 1, .storage = storage}); }, code, {quoted},
                             where);
  };
  expect_refused("cuda:0", "LS-DEVICE", ".storage is 'cuda:0'");
  expect_refused("disk", "LS-DEVICE", "'disk'");
  expect_refused("", "LS-DEVICE", "''");
}

TEST(CentralStorage, IsKnownByName) {
  const auto strategy = make_strategy("central-storage", {.devices = lanes(1), .replicas = 3, .storage = "cpu"});
  EXPECT_EQ(strategy->name(), "CentralStorageStrategy");
  EXPECT_EQ(strategy->num_replicas(), 3);
  expect_error<UsageError>([] { make_strategy("central-storage", {.copies = Copies::kPerReplica}); }, "LS-OPTION",
                           {"central-storage"});
}

}  // namespace
}  // namespace lockstep
