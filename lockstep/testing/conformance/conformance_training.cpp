// The conformance checks of whole training programs: the same bits each time and on any number of lanes, and one
// device's numbers.
#include <ATen/ATen.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/strategy/kinds/one_device.h"
#include "lockstep/testing/conformance/conformance_checks.h"
#include "lockstep/testing/difference.h"
#include "lockstep/testing/recording.h"

namespace lockstep::internal::inline testing {

namespace {

using enum VariableSynchronization;
using enum VariableAggregation;
using lockstep::testing::TrainingProgram;

class Net : public torch::nn::Module {
 public:
  explicit Net(double dropout) {
    hidden_ = register_module("hidden", torch::nn::Linear(6, 12));
    dropout_ = register_module("dropout", torch::nn::Dropout(dropout));
    out_ = register_module("out", torch::nn::Linear(12, 2));
  }
  /// A mean over the samples of a part.
  at::Tensor loss(const Batch& part) {
    const at::Tensor found = out_->forward(dropout_->forward(at::tanh(hidden_->forward(part.input))));
    return at::mse_loss(found, part.target);
  }

 private:
  torch::nn::Linear hidden_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear out_{nullptr};
};

/// 33 samples that a network can learn. With batches of 10 the parts are uneven, and the last batch of an epoch, of
/// three samples, leaves some replicas without any.
Dataset samples() {
  const at::Tensor index = at::arange(33 * 6, at::kDouble).view({33, 6});
  const at::Tensor input = at::sin(index * 12.9898 + 0.5);
  const at::Tensor target = at::stack({input.sum(1) * 0.5, input.select(1, 0) - input.select(1, 3)}, 1);
  return lockstep::data::from_tensors(input.to(at::kFloat), target.to(at::kFloat));
}

struct Course {
  double dropout = 0;
  bool evaluate = false;  // after each step
};

/// Two epochs, with variables beside the module's: the mean of the inputs of a batch, and how many samples there were.
template <class Options>
TrainingProgram program(Options options, Course course = {}) {
  return [=](Strategy& strategy, const std::function<void()>& observe) {
    const auto model = strategy.make_module([&] { return std::make_shared<Net>(course.dropout); });
    const auto optimizer = strategy.make_optimizer(model, options);
    const Variable average =
        strategy.make_variable(at::zeros({6}), {.name = "average", .trainable = false, .aggregation = kSum});
    const Variable count = strategy.make_variable(at::zeros({}, at::kLong),
                                                  {.name = "count", .synchronization = kOnRead, .aggregation = kSum});
    const auto data = strategy.distribute(samples(), {.global_batch = 10, .shuffle = true});
    observe();
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          ctx.scale_loss(model(ctx)->loss(part)).backward();
          average.assign(ctx, part.input.sum(0) / static_cast<double>(part.global_size));
          count.assign_add(ctx, at::full({}, part.size(), at::kLong));
          optimizer.step(ctx);
        });
        if (course.evaluate) {
          strategy.evaluate(batch, [&](ReplicaContext& ctx, const Batch& part) {
            return model(ctx)->loss(part) + at::rand({}) + at::rand({}, ctx.shared_random());
          });
        }
        observe();
      }
    }
  };
}

TrainingProgram program_that_draws(bool evaluate = false) {
  return program(torch::optim::AdamWOptions(0.01), {.dropout = 0.3, .evaluate = evaluate});
}

Recording recorded(const Shape& shape, int lanes, const TrainingProgram& program, const char* again = "") {
  const auto strategy = shape.make(lanes);
  std::string who = fmt::format("{} of {}{}", strategy->name(), shape.text(lanes), again);
  if (shape.workers > 1) return record_with_generator(program, *strategy, std::move(who));
  return record(program, *strategy, std::move(who));
}

void expect_same(const Recording& expected, const Recording& found, std::optional<double> tolerance = std::nullopt) {
  const auto difference = first_difference(expected, found, tolerance);
  if (difference) throw Finding(difference->fact);
}

}  // namespace

void expect_same_bits(const Shape& shape, const TrainingProgram& program) {
  if (shape.workers > 1) {
    const Recording one = recorded(shape.on_one_worker(), shape.lanes, program);
    expect_same(part_of(one, shape.replicas, shape.workers, shape.worker), recorded(shape, shape.lanes, program));
    return;
  }
  const Recording expected = recorded(shape, shape.first_lanes, program);
  expect_same(expected, recorded(shape, shape.lanes, program, ", run again"));
}

void expect_like_one_device(const Shape& shape, const TrainingProgram& program) {
  OneDeviceStrategy one({.seed = Shape::kSeed});
  const Recording expected =
      shape.workers > 1 ? record_with_generator(program, one, "one device") : record(program, one, "one device");
  constexpr double kTolerance = 1e-3;
  expect_same(expected, recorded(shape, shape.lanes, program),
              shape.replicas == 1 ? std::nullopt : std::optional<double>(kTolerance));
}

namespace {

void same_bits(const Shape& shape) { expect_same_bits(shape, program_that_draws()); }

void evaluations_move_no_bit(const Shape& shape) {
  const Recording expected = recorded(shape, shape.lanes, program_that_draws());
  expect_same(expected, recorded(shape, shape.lanes, program_that_draws(true), ", with evaluations"));
}

void learns(const Shape& shape) {
  const auto strategy = shape.make(shape.lanes);
  const auto model = strategy->make_module([] { return std::make_shared<Net>(0); });
  const auto optimizer = strategy->make_optimizer(model, torch::optim::SGDOptions(0.2));
  const auto data = strategy->distribute(samples(), {.global_batch = 33});
  const auto loss_on = [&](const PerReplica<Batch>& batch) {
    const auto losses = strategy->evaluate(
        batch, [&](ReplicaContext& ctx, const Batch& part) { return ctx.scale_loss(model(ctx)->loss(part)); });
    return strategy->reduce(Reduction::kSum, losses).item<double>();
  };
  std::vector<double> losses;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      losses.push_back(loss_on(batch));
      strategy->run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(model(ctx)->loss(part)).backward();
        optimizer.step(ctx);
      });
    }
  }
  expect(losses.back() < losses.front() / 2,
         fmt::format("{}: the loss of a model that can learn is {} before training and {} after 20 steps",
                     strategy->name(), losses.front(), losses.back()));
}

void like_one_device_with_sgd(const Shape& shape) {
  expect_like_one_device(shape, program(torch::optim::SGDOptions(0.05).momentum(0.9)));
}
void like_one_device_with_adamw(const Shape& shape) {
  expect_like_one_device(shape, program(torch::optim::AdamWOptions(0.01)));
}

constexpr const char* kFunctions =
    "look for something that does not depend on its arguments alone in the strategy's Topology, Placement and Reducer: "
    "lanes, "
    "addresses, "
    "counters and clocks decide no bit";
constexpr const char* kGradients =
    "look at the strategy's Reducer: gradients are added, each replica's once, and never averaged; a strategy that "
    "trains replicas locally says .one_gradient_rule = false";

constexpr std::array<ShapeCheck, 3> kTrainingChecks{{
    {"TrainingGivesTheSameBitsEachTimeAndOnAnyLanes", same_bits, kFunctions},
    {"EvaluationsMoveNoBit", evaluations_move_no_bit, kFunctions},
    {"TrainingLearns", learns, "look whether gradients reach every component of every parameter"},
}};
constexpr std::array<ShapeCheck, 2> kOneDeviceChecks{{
    {"TrainingWithSgdIsOneDevices", like_one_device_with_sgd, kGradients},
    {"TrainingWithAdamWIsOneDevices", like_one_device_with_adamw, kGradients},
}};

}  // namespace

std::span<const ShapeCheck> training_checks() { return kTrainingChecks; }
std::span<const ShapeCheck> one_device_checks() { return kOneDeviceChecks; }

}  // namespace lockstep::internal::testing
