// Fine-tuning by a Trainer: a network that tells ten digits apart learns to tell odd ones from even ones. At first its
// trunk is frozen; a callback of the program's own thaws it.
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "../scratch.h"
#include "lockstep/lockstep.h"

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t classes)
      : trunk(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(), torch::nn::Linear(64, 32),
              torch::nn::ReLU()),
        head(32, classes) {
    register_module("trunk", trunk);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& images) { return head(trunk->forward(images)); }
  void set_trunk_trainable(bool trainable) {
    for (auto& parameter : trunk->parameters()) parameter.requires_grad_(trainable);
  }
  torch::nn::Sequential trunk;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

// Lets the trunk train from an epoch on.
class ThawTrunk final : public lockstep::Callback {
 public:
  ThawTrunk(lockstep::Replicated<Net> model, int64_t from) : model_(std::move(model)), from_(from) {}

  std::string name() const override { return "thaw_trunk"; }  // in messages, and for its state in checkpoints

  void on_epoch_begin(lockstep::Trainer& trainer, const lockstep::Logs& /*logs*/) override {
    if (trainer.status().epoch >= from_) thaw(trainer.strategy());
  }
  // Whether a parameter is frozen is not part of a checkpoint, so that this callback says it again.
  void on_fit_resume(lockstep::Trainer& trainer, const lockstep::Logs& /*logs*/) override {
    if (std::exchange(is_thawed_, false)) thaw(trainer.strategy());
  }
  void on_epoch_end(lockstep::Trainer& trainer, const lockstep::Logs& /*logs*/) override {
    trainer.log("thawed", is_thawed_ ? 1 : 0);  // for the history, and for callbacks behind this one
  }
  bool uses_step_logs() const override { return false; }  // so that no step brings its numbers together
  std::vector<std::string> added_logs() const override { return {"thawed"}; }

  nlohmann::json state() const override { return {{"is_thawed", is_thawed_}}; }
  void load(const nlohmann::json& state) override { is_thawed_ = state.at("is_thawed").get<bool>(); }

 private:
  void thaw(lockstep::Strategy& strategy) {
    if (std::exchange(is_thawed_, true)) return;
    strategy.run([&](lockstep::ReplicaContext& ctx) { model_(ctx)->set_trunk_trainable(true); });
  }

  const lockstep::Replicated<Net> model_;
  const int64_t from_;
  bool is_thawed_ = false;
};

lockstep::TrainerOptions among(int64_t classes) {
  return {.loss =
              [classes](const torch::Tensor& output, const lockstep::Batch& batch) {
                return torch::nn::functional::cross_entropy(output, batch.target.remainder(classes));
              },
          .metrics = {lockstep::metrics::mean(
              "right",
              [classes](const torch::Tensor& output, const lockstep::Batch& batch) -> torch::Tensor {
                return output.argmax(1).eq(batch.target.remainder(classes)).to(torch::kDouble);
              },
              /*higher_is_better=*/true)}};
}

int main() {
  const lockstep::MirroredOptions options{.devices = {"cpu:0"}, .replicas = 2, .seed = 7};
  const auto digits = lockstep::data::digits();
  const lockstep::DistributeOptions batches{.global_batch = 100, .shuffle = true};

  // Ten digits.
  lockstep::MirroredStrategy before(options);
  auto trained = before.make_module([] { return Net(10); });
  lockstep::Trainer(before, trained, before.make_optimizer(trained, torch::optim::AdamOptions(1e-3)), among(10))
      .fit(before.distribute(digits.train, batches), {.epochs = 2});
  std::map<std::string, torch::Tensor> trunk;
  for (const auto& [name, value] : trained.state()) {
    if (name.starts_with("trunk.")) trunk[name] = value;
  }

  // Odd or even: the factory freezes the trunk, whose values are those of the trained one.
  lockstep::MirroredStrategy strategy(options);
  auto model = strategy.make_module([] {
    Net net(2);
    net->set_trunk_trainable(false);
    return net;
  });
  model.load(trunk, {.allow_missing = true});
  const auto is_trunk_as_it_was = [&] {
    const auto now = model.state();
    return now.at("trunk.1.weight").equal(trunk.at("trunk.1.weight"));
  };
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(1e-3));
  lockstep::Trainer trainer(strategy, model, optimizer, among(2));
  auto train = strategy.distribute(digits.train, batches);
  auto validate = strategy.distribute(digits.evaluate, {.global_batch = 500});
  const auto history = trainer.fit(
      train, {.epochs = 4,
              .validation = validate,
              .callbacks = {std::make_shared<ThawTrunk>(model, 2),
                            lockstep::callbacks::each_epoch([&](lockstep::Trainer& fit, const lockstep::Logs& logs) {
                              std::cout << "epoch " << fit.status().epoch << ": the trunk is "
                                        << (logs.at("thawed") > 0 ? "thawed" : "frozen") << ", and is "
                                        << (is_trunk_as_it_was() ? "as it was" : "another one") << "\n";
                            })}});
  const auto right = history.of("val_right");
  std::cout << "with the trunk it is " << (right.back().second > right.at(1).second ? "more" : "not more")
            << " often right than without\n";
}
