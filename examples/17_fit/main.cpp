// The shortest whole program: trains a network with validation and early stopping, and goes on where it was stopped.
#include <torch/torch.h>

#include <filesystem>
#include <iostream>

#include "lockstep/lockstep.h"

int main() {
  const auto folder = std::filesystem::temp_directory_path() / "lockstep-fit";
  std::filesystem::remove_all(folder);  // as if it had never run; without this line it would go on where it was

  lockstep::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7});
  auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                                 torch::nn::Linear(64, 10));
  });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3));
  const auto digits = lockstep::data::digits();
  auto train = strategy.distribute(digits.train, {.global_batch = 100, .shuffle = true});
  auto validate = strategy.distribute(digits.evaluate, {.global_batch = 500});

  lockstep::Trainer trainer(
      strategy, model, optimizer,
      {.loss = [](const torch::Tensor& output,
                  const lockstep::Batch& batch) { return torch::nn::functional::cross_entropy(output, batch.target); },
       .clip_global_norm = 1.0});
  const lockstep::History history = trainer.fit(
      train,
      {.epochs = 20,
       .validation = validate,
       .callbacks = {lockstep::callbacks::early_stopping({.monitor = "val_loss", .patience = 2, .restore_best = true}),
                     lockstep::callbacks::checkpoints({.directory = folder / "checkpoints"})}});

  const auto best = trainer.evaluate(validate);
  const torch::Tensor outputs = trainer.predict(validate);  // in the order of the samples, each once
  bool is_best = true;
  for (const auto& [epoch, loss] : history.of("val_loss")) is_best = is_best && best.at("loss") <= loss;
  std::cout << (is_best ? "the model has its best weights\n" : "the model does not have its best weights\n")
            << "outputs: " << outputs.sizes() << "\n";
  std::filesystem::remove_all(folder);
}
