// Trains on a folder of images, one folder for each class, with random crops and flips.
#include <torch/torch.h>

#include <iomanip>
#include <iostream>
#include <random>

#include "../scratch.h"
#include "lockstep/lockstep.h"
#include "png_file.h"

namespace {

using lockstep::Batch;
namespace data = lockstep::data;

/// Makes bars/0.png, checks/0.png, dots/0.png and so on: patterns of 24 x 24 pixels, in any colour.
void make_images(const Scratch& folder, int count) {
  std::mt19937 random(1);
  const auto draw = [&](uint32_t below) { return static_cast<int>(random() % below); };
  const char* const classes[] = {"bars", "checks", "dots"};
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < count; ++i) {
      const int size = 3 + draw(3);
      const int shift = draw(6);
      const int colour[] = {100 + draw(156), 100 + draw(156), 100 + draw(156)};
      std::string pixels;
      for (int y = 0; y < 24; ++y) {
        for (int x = 0; x < 24; ++x) {
          const bool column = (x + shift) / size % 2 == 0;
          const bool row = (y + shift) / size % 2 == 0;
          const bool is_lit = c == 0 ? row : c == 1 ? row != column : row && column;
          for (const int part : colour) pixels += static_cast<char>(is_lit ? part : draw(40));
        }
      }
      folder.write(std::string(classes[c]) + "/" + std::to_string(i) + ".png", png_file(24, 24, pixels));
    }
  }
}

}  // namespace

int main() {
  const Scratch folder;
  make_images(folder, 60);

  lockstep::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 2, .seed = 7});

  // Samples are numbers of files: they are read and decoded when their step comes, on threads of their own.
  const data::ImageFolder images = data::image_folder(folder.path(), {.height = 24, .width = 24});
  for (std::size_t c = 0; c < images.classes.size(); ++c)
    std::cout << "class " << c << ": " << images.classes[c] << "\n";
  const auto augmented = images.dataset
                             .map([](Batch sample, const at::Generator& random) {
                               sample.input = data::random_crop(sample.input, {.height = 20, .width = 20}, random);
                               sample.input = data::random_flip(sample.input, random);
                               return sample;
                             })
                             .prefetch(4);
  const auto train = strategy.distribute(augmented, {.global_batch = 12, .shuffle = true});

  auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 5).stride(2)), torch::nn::ReLU(),
                                 torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).stride(2)), torch::nn::ReLU(),
                                 torch::nn::AdaptiveAvgPool2d(2), torch::nn::Flatten(), torch::nn::Linear(64, 3));
  });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(3e-3));
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    double right = 0;
    for (const auto& batch : train.epoch(epoch)) {
      const auto correct = strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const Batch& b) {
        const auto logits = model(ctx)->forward(b.input);
        ctx.scale_loss(torch::nn::functional::cross_entropy(logits, b.target)).backward();
        optimizer.step(ctx);
        return logits.argmax(1).eq(b.target).sum();
      });
      right += strategy.reduce(lockstep::Reduction::kSum, correct).item<double>();
    }
    if (epoch == 0 || epoch == 7) {
      const double share = right / static_cast<double>(train.size());
      std::cout << "epoch " << epoch << ": "
                << (share > 0.9    ? "most images"
                    : share < 0.75 ? "some images"
                                   : "many images")
                << " are recognised\n";
    }
  }
  std::cout << "each image once in an epoch: " << (train.ledger().back().has_each_once(train.size()) ? "yes" : "no")
            << "\n";

  // An image that cannot be decoded is named.
  folder.write("dots/7.png", "no image at all");
  try {
    for (const auto& batch : train.epoch(8)) static_cast<void>(batch);
  } catch (const lockstep::DataError& error) {
    const std::string text = error.what();
    std::cout << "a damaged file: " << text.substr(text.find("dots")) << "\n";
  }
}
