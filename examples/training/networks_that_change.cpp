// State beside the weights, and weights that change in other ways than by steps: carried states of a recurrent network,
// a target network, and a network that grows.
#include <torch/torch.h>

#include <iostream>
#include <tuple>
#include <vector>

#include "lockstep/lockstep.h"

using lockstep::Batch;
using lockstep::ReplicaContext;
using torch::Tensor;

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(5);  // of the samples below
  lockstep::MirroredStrategy strategy({.replicas = 2, .seed = 3});

  // [carried]
  constexpr int64_t kSequences = 5;
  constexpr int64_t kSegment = 8;
  auto rnn = strategy.make_module([] { return torch::nn::GRU(1, 12); }, {.name = "rnn"});
  auto head = strategy.make_module([] { return torch::nn::Linear(12, 1); }, {.name = "head"});
  auto variables = rnn.variables();
  for (const auto& one : head.variables()) variables.push_back(one);
  auto optimizer = strategy.make_optimizer(variables, torch::optim::AdamOptions(0.02));

  // [time, sequences, 1]: the target is the value of the step before.
  const Tensor signal = torch::randn({25 * kSegment + 1, kSequences, 1}).sign();
  double loss = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    // Each replica keeps the state of its own sequences, [1, sequences, 12].
    auto states = strategy.per_replica([](lockstep::ReplicaId) { return Tensor(); });
    for (int64_t t = 1; t < signal.size(0); t += kSegment) {
      const auto parts = strategy.split(signal.narrow(0, t, kSegment), signal.narrow(0, t - 1, kSegment), {.axis = 1});
      auto [losses, next] =
          strategy.run(parts, states, [&](ReplicaContext& ctx, const Batch& part, const Tensor& carried) {
            auto state = carried.defined() ? carried : torch::zeros({1, part.size(), 12});
            auto [outputs, last] = rnn(ctx)->forward(part.input, state);
            auto scaled = ctx.scale_loss(torch::mse_loss(head(ctx)->forward(outputs), part.target));
            scaled.backward();
            optimizer.step(ctx);
            return std::tuple(scaled.detach(), last.detach());  // detached: no gradient flows into the last segment
          });
      states = next;  // the same split gives each replica the same sequences again
      loss = strategy.reduce(lockstep::Reduction::kSum, losses).item<double>();
    }
  }
  // [carried]
  std::cout << "the network " << (loss < 0.1 ? "remembers" : "forgets") << " the value of the step before\n";

  // [target]
  auto make_critic = [] { return torch::nn::Linear(3, 1); };
  auto critic = strategy.make_module(make_critic, {.name = "critic"});
  auto target = strategy.make_module(make_critic, {.name = "target"});  // no optimizer has it
  target.load(critic.state());                                          // equal at the beginning, or every k steps

  auto follow = [&](double rate) {  // after each step
    const auto& theirs = critic.variables();
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const Tensor now = theirs[i].read();
      strategy.update(target.variables()[i], [&](Tensor& value) { value.lerp_(now, rate); });
    }
  };
  // [target]
  auto critic_optimizer = strategy.make_optimizer(critic, torch::optim::SGDOptions(0.1));
  const Tensor samples = torch::randn({8, 3});
  const Tensor before = target.state().at("weight");
  strategy.run(strategy.split(samples, samples.sum(1, true)), [&](ReplicaContext& ctx, const Batch& part) {
    Tensor wanted;
    {
      const torch::NoGradGuard no_grad;
      wanted = part.target + 0.9 * target(ctx)->forward(part.input);
    }
    ctx.scale_loss(torch::mse_loss(critic(ctx)->forward(part.input), wanted)).backward();
    critic_optimizer.step(ctx);
  });
  follow(0.25);
  const Tensor way = critic.state().at("weight") - before;
  std::cout << "the target has gone a quarter of the way: "
            << (torch::allclose(target.state().at("weight") - before, 0.25 * way, 1e-4, 1e-6) ? "yes" : "no") << "\n";

  // [growing]
  auto small = strategy.make_module([] { return torch::nn::Linear(3, 4); }, {.name = "small"});
  auto small_optimizer = strategy.make_optimizer(small, torch::optim::AdamOptions(0.01));
  strategy.run(strategy.split(samples), [&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(small(ctx)->forward(part.input).square().mean()).backward();
    small_optimizer.step(ctx);
  });

  // A module keeps its parameters and their shapes. One that has grown is another module, which takes the values over.
  auto large = strategy.make_module([] { return torch::nn::Linear(3, 6); }, {.name = "large"});
  auto large_optimizer = strategy.make_optimizer(large, torch::optim::AdamOptions(0.01));
  auto copy_into = [](const Tensor& from, Tensor to) {
    for (int64_t d = 0; d < from.dim(); ++d) to = to.narrow(d, 0, from.size(d));
    to.copy_(from);
  };
  auto values = large.state();  // copies
  for (const auto& [name, value] : small.state()) copy_into(value, values.at(name));
  large.load(values);
  auto slots = large_optimizer.state();  // slots and step counts too: "large.weight/exp_avg" of "small.weight/exp_avg"
  for (const auto& [name, value] : small_optimizer.state()) {
    const auto same = slots.find(name.rfind("small.", 0) == 0 ? "large." + name.substr(6) : name);
    copy_into(value, same->second);
  }
  large_optimizer.load(slots);
  // [growing]
  std::cout << "the larger layer gives what the smaller one gave, and more: "
            << (torch::equal(large.state().at("weight").narrow(0, 0, 4), small.state().at("weight")) &&
                        large_optimizer.state().at("large.weight/step").item<int64_t>() == 1
                    ? "yes"
                    : "no")
            << "\n\n"
            << lockstep::summary(large);
}
