// A training run that saves checkpoints, is stopped in the middle of an epoch, and goes on with the bits of a run that
// was never stopped.
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

namespace fs = std::filesystem;

// One run of the program: goes on from the newest checkpoint, trains up to `steps`, and gives a digest of the weights.
std::string train(const fs::path& directory, std::vector<std::string> devices, int64_t steps) {
  lockstep::MirroredStrategy strategy({.devices = std::move(devices), .replicas = 4, .seed = 7});
  auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                                 torch::nn::Dropout(0.2), torch::nn::Linear(64, 10));
  });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3));
  auto data = strategy.distribute(lockstep::data::digits().train, {.global_batch = 500, .shuffle = true});

  lockstep::Checkpoint checkpoint(strategy);  // variables, slots, learning rates, the step: all by itself
  checkpoint.track("data", data);             // and the place in the epoch
  lockstep::CheckpointManager manager(checkpoint, {.directory = directory, .keep = 2});
  if (const auto restored = manager.restore_latest()) {
    std::cout << "goes on after step " << restored->step << "\n";
  } else {
    std::cout << "starts from the beginning\n";
  }

  for (int64_t epoch = data.cursor().epoch; strategy.step() < steps; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& b) {
        ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(b.input), b.target)).backward();
        optimizer.step(ctx);
      });
      if (strategy.step() % 5 == 0) manager.save();  // holds the training for a copy; a thread writes it
      if (strategy.step() == steps) break;           // a program that stops by SIGTERM asks strategy.stop_requested()
    }
  }
  manager.wait();  // what was saved is on the disk now

  std::vector<std::pair<std::string, at::Tensor>> weights;
  for (const auto& [name, value] : model.state()) weights.emplace_back(name, value);
  return lockstep::sha256_of(weights);
}

int main() {
  const fs::path folder = fs::temp_directory_path() / "lockstep-stop-and-resume";
  fs::remove_all(folder);

  // Never stopped: 32 steps, which are one epoch of 20 and more than half of the next.
  const std::string whole = train(folder / "whole", {"cpu:0"}, 32);

  // Stopped after 13 steps, as by a crash: what was saved last is step 10. Then stopped again, and on two lanes.
  train(folder / "stopped", {"cpu:0"}, 13);
  train(folder / "stopped", {"cpu:0", "cpu:1"}, 27);
  const std::string stopped = train(folder / "stopped", {"cpu:0"}, 32);
  std::cout << (stopped == whole ? "the weights have the same bits\n" : "the weights differ\n");

  for (const auto& name : {"step-0000000025", "step-0000000030"}) {
    std::cout << name << (fs::exists(folder / "stopped" / name) ? " is kept\n" : " is gone\n");
  }
  fs::remove_all(folder);
  return stopped == whole ? 0 : 1;
}
