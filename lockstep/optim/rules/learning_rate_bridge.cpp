#include "lockstep/optim/rules/learning_rate_bridge.h"

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

/// The options of one group, as LibTorch's schedulers see them.
class GroupOptions final : public torch::optim::OptimizerOptions {
 public:
  GroupOptions(lockstep::Optimizer optimizer, int64_t group) : optimizer_(std::move(optimizer)), group_(group) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(optimizer_, group_);
  }
  double get_lr() const override { return optimizer_.learning_rate(group_); }
  // NOLINTNEXTLINE(readability-avoid-const-params-in-decls): as LibTorch declares it
  void set_lr(const double rate) override { optimizer_.set_learning_rate(rate, group_); }

 private:
  const lockstep::Optimizer optimizer_;
  const int64_t group_;
};

}  // namespace

LearningRateBridge::LearningRateBridge(const lockstep::Optimizer& optimizer)
    : torch::optim::Optimizer(
          std::vector<torch::optim::OptimizerParamGroup>(static_cast<std::size_t>(optimizer.num_groups()),
                                                         torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{})),
          std::make_unique<GroupOptions>(optimizer, 0)) {
  // Some versions of LibTorch give groups the defaults in place of options that they do not know.
  int64_t group = 0;
  for (auto& one : param_groups()) one.set_options(std::make_unique<GroupOptions>(optimizer, group++));
}

at::Tensor LearningRateBridge::step(LossClosure /*closure*/) {
  throw UsageError("LS-OPTION", "a LearningRateBridge was asked to step",
                   "step the optimizer that it was made over: optimizer.step(ctx)");
}

}  // namespace lockstep
