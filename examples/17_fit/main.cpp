// The shortest whole program: trains a network with validation and early stopping, and goes on where it was stopped.
// It reads digits that the library draws, or, given the folder of MNIST's files, those. A second argument is the folder
// in which the run stays, with its report; without it that is a folder of its own, which goes at the end.
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <string>

#include "lockstep/lockstep.h"

torch::nn::Sequential make_network(bool is_for_mnist) {
  using namespace torch::nn;
  if (!is_for_mnist) return Sequential(Flatten(), Linear(784, 64), ReLU(), Linear(64, 10));
  return Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), BatchNorm2d(16), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(16, 32, 3).padding(1)), BatchNorm2d(32), ReLU(), MaxPool2d(2), Flatten(),
                    Dropout(0.3), Linear(32 * 7 * 7, 10));
}

int main(int argc, char** argv) {
  const bool is_for_mnist = argc > 1 && argv[1] != std::string("digits");
  const auto folder =
      argc > 2 ? std::filesystem::path(argv[2]) : std::filesystem::temp_directory_path() / "lockstep-fit";
  if (argc < 3) std::filesystem::remove_all(folder);  // as if it had never run; otherwise it goes on where it was

  lockstep::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7});
  auto model = strategy.make_module([&] { return make_network(is_for_mnist); }, {.buffers = lockstep::Buffers::kMean});
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3));
  const auto digits = is_for_mnist ? lockstep::data::idx(argv[1]) : lockstep::data::digits();
  auto train = strategy.distribute(digits.train, {.global_batch = 100, .shuffle = true});
  auto validate = strategy.distribute(digits.evaluate, {.global_batch = 500});

  lockstep::Trainer trainer(
      strategy, model, optimizer,
      {.loss = [](const torch::Tensor& output,
                  const lockstep::Batch& batch) { return torch::nn::functional::cross_entropy(output, batch.target); },
       .metrics = {lockstep::metrics::accuracy()},
       .clip_global_norm = 1.0});
  const lockstep::History history = trainer.fit(
      train,
      {.epochs = 20,
       .validation = validate,
       .callbacks = {lockstep::callbacks::early_stopping({.monitor = "val_loss", .patience = 2, .restore_best = true}),
                     lockstep::callbacks::html_report({.file = folder / "report.html", .title = "fit"}),
                     lockstep::callbacks::checkpoints({.directory = folder / "checkpoints"})}});

  const auto best = trainer.evaluate(validate);
  const torch::Tensor outputs = trainer.predict(validate);  // in the order of the samples, each once
  bool is_best = true;
  for (const auto& [epoch, loss] : history.of("val_loss")) is_best = is_best && best.at("loss") <= loss;
  std::cout << (is_best ? "the model has its best weights\n" : "the model does not have its best weights\n")
            << "outputs: " << outputs.sizes() << "\n";
  if (is_for_mnist) {
    std::cout << "accuracy " << best.at("accuracy") << " after " << history.epochs().size() << " epochs\n";
  }
  if (argc < 3) std::filesystem::remove_all(folder);
}
