// Measures what `run` costs: one replica under OneDeviceStrategy against the same loop by hand on LibTorch with
// torch::optim, alternating in one process.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/lockstep.h"
#include "tools/bench/made_data.h"
#include "tools/bench/timing.h"
#include "tools/console.h"
#include "tools/models/models.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;

double seconds_per_step(const std::function<void()>& step, int steps) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / steps;
}

}  // namespace

int main(int argc, char** argv) {
  ModelOptions model_options;
  int64_t batch_size = 64;
  int blocks = 30;
  int steps = 30;
  CLI::App app("One replica through run() against the same loop by hand", "run_overhead");
  app.add_option("--model", model_options.name)->check(CLI::IsMember(model_names()))->capture_default_str();
  app.add_option("--widths", model_options.widths)->delimiter(',')->capture_default_str();
  app.add_option("--batch", batch_size)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--blocks", blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", steps, "of a block")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);  // what a replica has
  Batch batch = made_batch(model_options, batch_size, 0);
  batch.global_size = batch_size;

  const std::shared_ptr<Classifier> bare_model = make_model(model_options);
  torch::optim::AdamW bare_optimizer(bare_model->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto by_hand = [&] {
    bare_optimizer.zero_grad();
    mean_loss(*bare_model, batch.input, batch.target).backward();
    bare_optimizer.step();
  };

  OneDeviceStrategy strategy({.device = "cpu:0"});
  const auto model = strategy.make_module([&] { return make_model(model_options); });
  const Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3));
  const auto through_run = [&] {
    strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
      ctx.scale_loss(mean_loss(*model(ctx), part.input, part.target)).backward();
      optimizer.step(ctx);
    });
  };
  const auto empty_run = [&] { strategy.run([](ReplicaContext&) {}); };

  // As the update does it: of each weight as found and as left. There it is part of a pass that reads and writes them
  // anyway, here it is on its own, so this is more than it costs.
  std::vector<at::Tensor> weights;
  for (const Variable& variable : model.variables()) {
    if (variable.synchronization() == VariableSynchronization::kOnWrite) weights.push_back(variable.read());
  }
  const auto verify = [&] {
    for (const at::Tensor& weight : weights) {
      for (int pass = 0; pass < 2; ++pass) internal::checksum(weight.data_ptr(), static_cast<int64_t>(weight.nbytes()));
    }
  };

  seconds_per_step(by_hand, steps);
  seconds_per_step(through_run, steps);
  std::vector<double> bare, run, empty, verified;
  for (int i = 0; i < blocks; ++i) {  // ABBA
    if (i % 2 == 0) bare.push_back(seconds_per_step(by_hand, steps));
    run.push_back(seconds_per_step(through_run, steps));
    if (i % 2 == 1) bare.push_back(seconds_per_step(by_hand, steps));
    empty.push_back(seconds_per_step(empty_run, 1000));
    verified.push_back(seconds_per_step(verify, 10));
  }
  const auto row = [](const std::vector<double>& seconds) {
    const Timing t = summarize(seconds);
    return fmt::format("{:.4f} ms (p10 {:.4f}, p90 {:.4f})", 1e3 * t.median, 1e3 * t.p10, 1e3 * t.p90);
  };
  print_table({
      {"by hand", row(bare)},
      {"through run", row(run)},
      {"ratio of medians", fmt::format("{:.4f}", summarize(run).median / summarize(bare).median)},
      {"an empty run", row(empty)},
      {"checksums, at most",
       fmt::format("{} = {:.4f} of a step", row(verified), summarize(verified).median / summarize(run).median)},
  });
  return 0;
}
