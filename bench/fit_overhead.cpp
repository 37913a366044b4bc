// Measures what a fit costs: epochs by Trainer::fit against the loop that it stands for, alternating in one process
// and, unless two models are asked for, with one model: another model's memory has other places in the caches.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <functional>
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

using Model = Replicated<std::shared_ptr<Classifier>>;

/// A model with an optimizer and data of its own. Both sides have the same.
struct Side {
  Side(Strategy& of, const ModelOptions& options, int64_t batch, int64_t steps, const std::string& name)
      : strategy(of),
        model(strategy.make_module([&] { return make_model(options); }, {.name = name})),
        optimizer(strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3), {.name = name + " optimizer"})) {
    const Batch made = made_batch(options, batch * steps, 0);
    data = strategy.distribute(data::from_tensors(made.input, made.target),
                               {.global_batch = batch, .shuffle = true, .seed = 1});
  }
  Strategy& strategy;
  Model model;
  Optimizer optimizer;
  DistributedDataset data;
};

torch::Tensor loss_of(const torch::Tensor& output, const Batch& batch) {
  return torch::nn::functional::cross_entropy(output, batch.target.flatten());
}

void loop(const Side& side) {
  for (const auto& batch : side.data.epoch(0)) {
    side.strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
      ctx.scale_loss(loss_of(side.model(ctx)->forward(part.input), part)).backward();
      side.optimizer.step(ctx);
    });
  }
  auto begin = side.data.cursor();
  begin.epoch = begin.position = 0;
  side.data.seek(begin);
}

}  // namespace

int main(int argc, char** argv) {
  ModelOptions model_options{.name = "mlp", .widths = {64, 64, 10}};
  int64_t batch = 16;
  int64_t replicas = 1;
  int64_t steps = 500;
  int blocks = 30;
  int64_t log_every = 1;
  bool listens = false;
  bool counts = false;
  bool is_control = false;
  bool has_two = false;
  std::string only = "both";
  CLI::App app("Trainer::fit against the loop that it stands for", "fit_overhead");
  app.add_option("--model", model_options.name)->check(CLI::IsMember(model_names()))->capture_default_str();
  app.add_option("--widths", model_options.widths)->delimiter(',')->capture_default_str();
  app.add_option("--batch", batch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--replicas", replicas)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", steps, "of an epoch, which is a block")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--blocks", blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--log-every", log_every)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--listens", listens, "a callback looks at the logs of the steps");
  app.add_flag("--accuracy", counts, "the trainer has a metric; the loop has none");
  app.add_flag("--two-models", has_two, "each side has a model, an optimizer and data of its own");
  app.add_flag("--control", is_control, "the loop on both sides: what the clock, or the models' memory, does alone");
  app.add_option("--only", only, "fit or loop: for a program that counts instructions")
      ->check(CLI::IsMember({"both", "fit", "loop"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = replicas});
  const Side bare(strategy, model_options, batch, steps, "bare");
  const Side fitted(strategy, model_options, batch, steps, "fitted");
  fitted.model.load(bare.model.state());
  TrainerOptions options{.loss = loss_of};
  if (counts) options.metrics = {metrics::accuracy()};
  double last = 0;
  FitOptions fit_options{.epochs = 1, .log_every = log_every};
  if (listens) {
    fit_options.callbacks = {callbacks::each_step([&](Trainer&, const Logs& logs) {
      if (!logs.empty()) last = logs.at("loss");
    })};
  }
  loop(bare);
  Trainer(strategy, fitted.model, fitted.optimizer, options).fit(fitted.data, fit_options);
  const std::string equal = [&] {
    const auto expected = bare.model.state();
    for (const auto& [name, value] : fitted.model.state()) {
      if (!expected.at(name).equal(value)) return "no: " + name;
    }
    return std::string("yes");
  }();

  const Side& second = has_two ? fitted : bare;
  Trainer trainer(strategy, second.model, second.optimizer, options);
  const auto by_loop = [&] { loop(bare); };
  const auto by_fit = [&] {
    if (is_control) {
      loop(second);
    } else {
      trainer.fit(second.data, fit_options);
    }
  };

  std::vector<double> of_loop, of_fit;
  if (only != "fit") by_loop();
  if (only != "loop") by_fit();
  for (int i = 0; i < blocks; ++i) {  // ABBA
    if (only != "fit" && i % 2 == 0) of_loop.push_back(seconds_for(by_loop));
    if (only != "loop") of_fit.push_back(seconds_for(by_fit));
    if (only != "fit" && i % 2 == 1) of_loop.push_back(seconds_for(by_loop));
  }
  if (only != "both") return 0;
  const auto row = [&](const std::vector<double>& seconds) {
    const Timing t = summarize(seconds);
    const double us = 1e6 / static_cast<double>(steps);
    return fmt::format("{:.2f} us a step (p10 {:.2f}, p90 {:.2f})", us * t.median, us * t.p10, us * t.p90);
  };
  print_table({{"the loop", row(of_loop)},
               {"the fit", row(of_fit)},
               {"ratio of medians", fmt::format("{:.4f}", summarize(of_fit).median / summarize(of_loop).median)},
               {"ratio of the fastest tenths", fmt::format("{:.4f}", summarize(of_fit).p10 / summarize(of_loop).p10)},
               {"equal weights after an epoch", equal}});
  return 0;
}
