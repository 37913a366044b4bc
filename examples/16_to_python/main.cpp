// Weights that were trained here go to a Python program as a safetensors file: load.py loads them and gets the same
// outputs. Usage: to_python [FOLDER], in which the files stay.
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <string>

#include "lockstep/lockstep.h"

namespace fs = std::filesystem;

int main(int argc, char** argv) {
  const bool stays = argc > 1;
  const fs::path folder = stays ? fs::path(argv[1]) : fs::temp_directory_path() / "lockstep-to-python";
  fs::create_directories(folder);

  lockstep::MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2, .seed = 7});
  auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 32), lockstep::SyncBatchNorm(32),
                                 torch::nn::ReLU(), torch::nn::Linear(32, 10));
  });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(1e-3));
  auto data = strategy.distribute(lockstep::data::digits().train, {.global_batch = 500, .shuffle = true});
  for (const auto& batch : data.epoch(0)) {
    strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& b) {
      ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(b.input), b.target)).backward();
      optimizer.step(ctx);
    });
  }

  // state() has parameters and buffers by their names in the module, each with one value: buffers that replicas have
  // their own of, such as running means, are aggregated.
  const std::map<std::string, at::Tensor> state = model.state();
  lockstep::save_tensors(folder / "model.safetensors", state);
  for (const auto& [name, value] : state) std::cout << name << " " << value.sizes() << "\n";

  // What Python must get: the outputs for some inputs.
  auto alone = model.export_module();
  alone->eval();
  const torch::NoGradGuard no_grad;
  const auto inputs = torch::arange(4 * 784).to(torch::kFloat).view({4, 1, 28, 28}).sin();
  lockstep::save_tensors(folder / "expected.safetensors", {{"inputs", inputs}, {"outputs", alone->forward(inputs)}});

  // The way back: what a Python program wrote with safetensors, or with torch.save(model.state_dict(), file).
  model.load(lockstep::load_tensors(folder / "model.safetensors"));
  std::cout << "written and read back\n";
  if (!stays) fs::remove_all(folder);
}
