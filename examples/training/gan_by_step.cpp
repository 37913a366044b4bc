// A GAN by a Trainer: `.step` is a step of the program's own, with two networks, two optimizers and noise.
#include <torch/torch.h>

#include <cmath>
#include <iostream>

#include "lockstep/lockstep.h"

constexpr int64_t kNoise = 4;

torch::Tensor loss_of(const torch::Tensor& logits, double label) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
}

int main() {
  const torch::Tensor real = torch::linspace(-1, 1, 2000).view({2000, 1}) * 0.5 + 4;  // numbers around 4
  lockstep::MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 4, .seed = 7});
  auto generator = strategy.make_module(
      [] { return torch::nn::Sequential(torch::nn::Linear(kNoise, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1)); },
      {.name = "generator"});
  auto discriminator = strategy.make_module(
      [] { return torch::nn::Sequential(torch::nn::Linear(1, 32), torch::nn::LeakyReLU(), torch::nn::Linear(32, 1)); },
      {.name = "discriminator"});
  const auto adam = torch::optim::AdamOptions(2e-3).betas({0.5, 0.999});
  auto generator_optimizer = strategy.make_optimizer(generator, adam);
  auto discriminator_optimizer = strategy.make_optimizer(discriminator, adam);
  auto data = strategy.distribute(lockstep::data::from_tensors(real, torch::zeros({2000})),
                                  {.global_batch = 100, .shuffle = true});

  // [step]
  lockstep::Trainer trainer(
      strategy, {.step = [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& part) {
        auto& g = generator(ctx);
        auto& d = discriminator(ctx);
        auto fake = g->forward(torch::randn({part.size(), kNoise}));  // other noise on each replica

        discriminator_optimizer.zero_grad(ctx);  // what the generator's loss left there in the step before
        ctx.scale_loss(loss_of(d->forward(part.input), 1) + loss_of(d->forward(fake.detach()), 0)).backward();
        discriminator_optimizer.step(ctx);

        const auto loss = loss_of(d->forward(fake), 1);
        ctx.scale_loss(loss).backward();
        generator_optimizer.step(ctx);
        return loss;  // for the logs
      }});
  const auto history = trainer.fit(data, {.epochs = 15, .callbacks = {lockstep::callbacks::stop_on_not_finite()}});
  // [step]

  torch::manual_seed(1);
  auto trained = generator.export_module();
  const torch::NoGradGuard no_grad;
  const double mean = trained->forward(torch::randn({1000, kNoise})).mean().item<double>();
  std::cout << "after " << history.epochs().size() << " epochs the generator makes numbers "
            << (std::abs(mean - 4) < 1 ? "around 4" : "elsewhere") << "\n";
}
