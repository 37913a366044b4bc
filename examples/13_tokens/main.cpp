// Trains on a file of tokens: a small network learns which token comes next.
#include <torch/torch.h>

#include <iomanip>
#include <iostream>

#include "../scratch.h"
#include "lockstep/lockstep.h"

namespace {

/// Two bytes a token, the lower one first, as many programs write them: 0 1 2 ... 10 0 1 ..., with a skip now and then.
std::string made_tokens(int count) {
  std::string bytes;
  int token = 0;
  for (int i = 0; i < count; ++i) {
    token = (token + (i % 37 == 0 ? 3 : 1)) % 11;
    bytes += static_cast<char>(token);
    bytes += '\0';
  }
  return bytes;
}

}  // namespace

int main() {
  const Scratch folder;
  const std::string file = folder.write("train.bin", made_tokens(20000));

  lockstep::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 2, .seed = 7});

  // A sample is a window of 16 tokens; its targets are the same, one token further. The file is never kept in memory.
  const auto windows =
      lockstep::data::tokens(file, {.dtype = lockstep::data::TokenType::kUInt16, .context = 16, .vocabulary = 11});
  const auto train = strategy.distribute(windows, {.global_batch = 32, .shuffle = true, .prefetch = 4});
  std::cout << train.size() << " windows, " << train.steps_per_epoch() << " steps an epoch\n";

  auto model =
      strategy.make_module([] { return torch::nn::Sequential(torch::nn::Embedding(11, 8), torch::nn::Linear(8, 11)); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.02));
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    double loss = 0;
    for (const auto& batch : train.epoch(epoch)) {
      const auto losses = strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& b) {
        const auto logits = model(ctx)->forward(b.input).flatten(0, 1);
        const auto part = ctx.scale_loss(torch::nn::functional::cross_entropy(logits, b.target.flatten()));
        part.backward();
        optimizer.step(ctx);
        return part.detach();
      });
      const double share = static_cast<double>(batch.begin()->global_size) / static_cast<double>(train.size());
      loss += share * strategy.reduce(lockstep::Reduction::kSum, losses).item<double>();
    }
    std::cout << "epoch " << epoch << ", loss " << std::setprecision(2) << loss << "\n";
  }

  // The file is another one when the run continues: the place would be one in other data.
  const auto saved = train.cursor();
  folder.write("train.bin", made_tokens(19999) + std::string("\5\0", 2));
  const auto again = strategy.distribute(
      lockstep::data::tokens(file, {.dtype = lockstep::data::TokenType::kUInt16, .context = 16, .vocabulary = 11}),
      {.global_batch = 32, .shuffle = true});
  try {
    again.seek(saved);
  } catch (const lockstep::DataError& error) {
    const std::string text = error.what();
    std::cout << "another file: '" << text.substr(text.find("train.bin")) << "\n";
  }
}
