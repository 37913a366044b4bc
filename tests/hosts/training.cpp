#include "tests/hosts/training.h"

#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"

using lockstep::ReplicaContext;
using lockstep::ReplicaError;
using lockstep::Variable;

namespace {

constexpr int64_t kWidth = 256;

class OneWorker final : public lockstep::Strategy {
 public:
  explicit OneWorker(std::shared_ptr<lockstep::World> world)
      : Strategy(
            lockstep::StrategySetup{.name = "OneWorker",
                                    .topology = std::make_shared<lockstep::HostTopology>(
                                        std::vector<std::string>{"cpu:0"}, HostsTraining::kReplicas, /*pinned=*/false),
                                    .world = std::move(world),
                                    .seed = 3}) {}
};

}  // namespace

struct HostsTraining::Parts {
  explicit Parts(std::shared_ptr<lockstep::World> world)
      : strategy(std::move(world)),
        weight(strategy.make_variable(
            torch::arange(kWidth * kWidth).to(torch::kFloat).sin().view({kWidth, kWidth}).mul(0.1),
            {.name = "weight"})),
        bias(strategy.make_variable(torch::arange(kWidth).to(torch::kFloat).cos(), {.name = "bias"})),
        optimizer(strategy.make_optimizer({weight, bias}, torch::optim::AdamWOptions(0.001))) {}

  OneWorker strategy;
  Variable weight;
  Variable bias;
  lockstep::Optimizer optimizer;
};

HostsTraining::HostsTraining(std::shared_ptr<lockstep::World> world)
    : parts_(std::make_unique<Parts>(std::move(world))) {}

HostsTraining::~HostsTraining() = default;

bool HostsTraining::step() {
  const Parts& parts = *parts_;
  try {
    parts_->strategy.run([&](ReplicaContext& ctx) {
      torch::Tensor x = torch::arange(64 * kWidth)
                            .view({64, kWidth})
                            .add(ctx.replica_id().value() + 7 * ctx.step())
                            .to(torch::kFloat)
                            .sin();
      for (int layer = 0; layer < 4; ++layer)
        x = torch::linear(x, parts.weight.value(ctx), parts.bias.value(ctx)).tanh();
      x.pow(2).mean().backward();
      parts.optimizer.step(ctx, {.clip_global_norm = 1});
    });
  } catch (const ReplicaError& error) {
    std::rethrow_if_nested(error);
    throw;
  }
  return parts.strategy.stop_requested();
}

std::string HostsTraining::digest() const {
  std::vector<std::pair<std::string, torch::Tensor>> named{{"weight", parts_->weight.read()},
                                                           {"bias", parts_->bias.read()}};
  for (const Variable& slot : parts_->optimizer.slots()) named.emplace_back(slot.name(), slot.read());
  return lockstep::sha256_of(named);
}
