// A network that was trained to tell ten digits apart learns to tell odd ones from even ones: the trunk comes from the
// checkpoint, and the head is new.
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "../scratch.h"
#include "lockstep/lockstep.h"

namespace fs = std::filesystem;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t classes)
      : trunk(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(), torch::nn::Linear(64, 32),
              torch::nn::ReLU()),
        head(32, classes) {
    register_module("trunk", trunk);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& images) { return head(trunk->forward(images)); }
  torch::nn::Sequential trunk;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

// Trains, and gives the mean loss of the steps. `classes` 2: odd or even.
double train(lockstep::Strategy& strategy, const lockstep::Replicated<Net>& model, int64_t classes, int64_t steps) {
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(1e-3), {.name = "adam"});
  auto data = strategy.distribute(lockstep::data::digits().train, {.global_batch = 200, .shuffle = true});
  double sum = 0;
  int64_t done = 0;
  for (const auto& batch : data.epoch(0)) {
    const auto losses = strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& b) {
      const auto loss = ctx.scale_loss(
          torch::nn::functional::cross_entropy(model(ctx)->forward(b.input), b.target.remainder(classes)));
      loss.backward();
      optimizer.step(ctx);
      return loss.detach();
    });
    sum += strategy.reduce(lockstep::Reduction::kSum, losses).item<double>();
    if (++done == steps) break;
  }
  return sum / static_cast<double>(done);
}

lockstep::MirroredOptions options() { return {.devices = {"cpu:0"}, .replicas = 2, .seed = 7}; }

int main() {
  const Scratch folder;
  fs::current_path(folder.path());

  // The first program: ten digits.
  torch::Tensor trained;
  {
    lockstep::MirroredStrategy strategy(options());
    auto model = strategy.make_module([] { return Net(10); });
    train(strategy, model, 10, 40);
    lockstep::Checkpoint(strategy).save("digits");
    trained = model.state().at("trunk.1.weight");
  }

  // The second one: its head has another shape, and its optimizer begins anew. Only the trunk is restored.
  lockstep::MirroredStrategy strategy(options());
  auto model = strategy.make_module([] { return Net(2); });
  const lockstep::Checkpoint checkpoint(strategy);
  try {
    checkpoint.restore("digits", {.only = {"model.trunc.*"}});
  } catch (const lockstep::UsageError& error) {
    std::cout << "a pattern that fits nothing: " << error.what() << "\n";
  }
  const auto head = model.state().at("head.weight");
  const auto info = checkpoint.restore("digits", {.only = {"model.trunk.*"}});
  std::cout << "restored from step " << info.step << ", and this run is at step " << strategy.step() << "\n";
  std::cout << "the trunk is the trained one: " << (model.state().at("trunk.1.weight").equal(trained) ? "yes" : "no")
            << "\n";
  std::cout << "the head is as it was made: " << (model.state().at("head.weight").equal(head) ? "yes" : "no") << "\n";

  // The same in the other order: what is made later takes its values when it is made.
  lockstep::MirroredStrategy late(options());
  const lockstep::Checkpoint early(late);
  early.restore("digits", {.only = {"model.trunk.*"}, .restore_on_create = true});
  std::cout << early.waiting().size() << " values wait, such as " << early.waiting().front() << "\n";
  auto made_later = late.make_module([] { return Net(2); });
  std::cout << early.waiting().size() << " values wait; the trunk is the trained one: "
            << (made_later.state().at("trunk.1.weight").equal(trained) ? "yes" : "no") << "\n";

  lockstep::MirroredStrategy scratch(options());
  auto untrained = scratch.make_module([] { return Net(2); });
  const double anew = train(scratch, untrained, 2, 10);
  const double tuned = train(strategy, model, 2, 10);
  std::cout << "ten steps of fine-tuning have " << (tuned < anew ? "a lower" : "no lower")
            << " loss than ten from the beginning\n";
  fs::current_path(fs::temp_directory_path());
  return tuned < anew ? 0 : 1;
}
