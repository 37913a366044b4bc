// Trains on a stream of TFRecord files, on two workers: `lockstep run -n 2 -- records`.
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>

#include "../scratch.h"
#include "lockstep/lockstep.h"
#include "record_file.h"

namespace {

namespace data = lockstep::data;
using lockstep::Batch;

/// Files of different lengths. A record has two numbers, and whether their sum is above 0.
void make_files(const Scratch& folder) {
  std::mt19937 random(1);
  const int counts[] = {90, 40, 75, 60, 35};
  for (int file = 0; file < 5; ++file) {
    std::string bytes;
    for (int i = 0; i < counts[file]; ++i) {
      const float a = static_cast<float>(random() % 200) / 100 - 1;
      const float b = static_cast<float>(random() % 200) / 100 - 1;
      bytes += framed(made_example({a, b}, a + b > 0 ? 1 : 0));
    }
    folder.write("part-" + std::to_string(file) + ".tfrecord", bytes);
  }
}

/// A sample has one row, whatever its record looks like.
Batch parsed(const std::string& record, const data::RecordPlace&) {
  const data::TfExample example = data::parse_tf_example(record);
  return {.input = data::tensor_of(example.at("x")).unsqueeze(0), .target = data::tensor_of(example.at("y"))};
}

void train(lockstep::Strategy& strategy, const std::string& folder) {
  const data::Stream stream = data::from_records(data::tf_records({folder + "/part-*.tfrecord"}), parsed).prefetch(2);
  // At least as many files as replicas, so each replica opens files of its own. The order depends on no worker.
  const auto input = strategy.distribute(stream, {.global_batch = 24, .shuffle = true});

  auto model = strategy.make_module([] { return torch::nn::Linear(2, 2); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.05));
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    int64_t steps = 0;
    double samples = 0;
    double right = 0;
    for (const auto& batch : input.epoch(epoch)) {
      const auto correct = strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const Batch& b) {
        // Where this replica's files are at their end its part is empty, and its gradient 0: all make the same steps.
        const auto logits = model(ctx)->forward(b.input);
        ctx.scale_loss(torch::nn::functional::cross_entropy(logits, b.target)).backward();
        optimizer.step(ctx);
        return torch::stack({logits.argmax(1).eq(b.target).sum(), torch::tensor(b.size())}).to(torch::kDouble);
      });
      const auto sums = strategy.reduce(lockstep::Reduction::kSum, correct);
      right += sums[0].item<double>();
      samples += sums[1].item<double>();
      ++steps;
    }
    std::ostringstream line;
    line << "epoch " << epoch << ": " << steps << " steps, " << samples << " records, more than "
         << 10 * std::floor(10 * right / samples) << " % of them right";
    if (strategy.is_chief()) std::cout << line.str() << "\n";
  }
}

}  // namespace

int main() try {
  lockstep::MultiWorkerMirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 4, .seed = 7});
  std::unique_ptr<Scratch> files;  // the chief's
  const std::string folder = strategy.on_chief([&] {
    files = std::make_unique<Scratch>();
    make_files(*files);
    return files->path();
  });
  train(strategy, folder);
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return static_cast<int>(lockstep::exit_code_of(error));
}
