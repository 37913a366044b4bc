// Measures what a captured step saves: steps by strategy.capture(fn) against steps by fn, alternating in one process.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tools/bench/made_data.h"
#include "tools/bench/timing.h"
#include "tools/console.h"
#include "tools/models/models.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;

}  // namespace

int main(int argc, char** argv) {
  ModelOptions model_options{.name = "mlp", .widths = {64, 64, 10}};
  int64_t batch = 16;
  int64_t replicas = 1;
  int lanes = 1;
  int blocks = 15;
  double block_seconds = 0.3;
  CLI::App app("steps by capture() against the same steps as they are", "captured_step");
  app.add_option("--model", model_options.name)->check(CLI::IsMember(model_names()))->capture_default_str();
  app.add_option("--widths", model_options.widths)->delimiter(',')->capture_default_str();
  app.add_option("--layers", model_options.layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--width", model_options.width)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", batch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--replicas", replicas)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--lanes", lanes)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--blocks", blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", block_seconds, "of a block")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  std::vector<std::string> devices;
  for (int lane = 0; lane < lanes; ++lane) devices.push_back(fmt::format("cpu:{}", lane));
  MirroredStrategy strategy({.devices = devices, .replicas = replicas});
  const auto model = strategy.make_module([&] { return make_model(model_options); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3));
  const Batch made = made_batch(model_options, batch, 0);
  const PerReplica<Batch> parts = strategy.split(made.input, made.target);
  const auto step = [&](ReplicaContext& ctx, const Batch& part) {
    const torch::Tensor output = model(ctx)->forward(part.input);
    ctx.scale_loss(torch::nn::functional::cross_entropy(output.flatten(0, -2), part.target.flatten())).backward();
    optimizer.step(ctx);
  };
  const auto captured = strategy.capture(step);
  for (int i = 0; i < 10; ++i) strategy.run(parts, captured);

  // How many steps a block has is found out once, so that both sides have the same.
  const double one = seconds_for([&] { strategy.run(parts, step); });
  const auto steps = std::max<int64_t>(static_cast<int64_t>(block_seconds / one), 1);
  std::vector<double> as_it_is, replayed;
  for (int i = 0; i < blocks; ++i) {
    const auto by_step = [&] {
      for (int64_t k = 0; k < steps; ++k) strategy.run(parts, step);
    };
    const auto by_capture = [&] {
      for (int64_t k = 0; k < steps; ++k) strategy.run(parts, captured);
    };
    if (i % 2 == 0) as_it_is.push_back(seconds_for(by_step));  // ABBA
    replayed.push_back(seconds_for(by_capture));
    if (i % 2 == 1) as_it_is.push_back(seconds_for(by_step));
  }
  if (captured.num_replayed() == 0) fmt::print("nothing was replayed:\n{}", captured.describe());
  const double us = 1e6 / static_cast<double>(steps);
  const double slow = summarize(as_it_is).median * us;
  const double fast = summarize(replayed).median * us;
  fmt::print("as it is {:.1f} us, captured {:.1f} us a step: {:.2f} times as fast\n", slow, fast, slow / fast);
}
