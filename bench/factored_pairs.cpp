// Measures what factored gradients cost or save: the same training step with them on and off, in turn in one process,
// so that a machine that slows down for seconds slows down both.
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
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

/// A model, an optimizer and a batch under a strategy of their own.
class Training {
 public:
  Training(const ModelOptions& options, const std::vector<std::string>& devices, int64_t batch, FactoredGradients on)
      : strategy_({.devices = devices, .seed = 1, .factored_gradients = on}),
        model_(strategy_.make_module([&] { return make_model(options); })),
        optimizer_(strategy_.make_optimizer(model_, torch::optim::AdamWOptions(1e-3))),
        batch_(strategy_.per_replica([&](ReplicaId replica) {
          Batch part = made_batch(options, batch, replica);
          part.global_size = batch * strategy_.num_replicas();
          return part;
        })) {}

  void step() {
    strategy_.run(batch_, [&](ReplicaContext& ctx, const Batch& part) {
      ctx.scale_loss(mean_loss(*model_(ctx), part.input, part.target)).backward();
      optimizer_.step(ctx);
    });
  }

  double seconds(int steps) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) step();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  MirroredStrategy strategy_;
  Replicated<std::shared_ptr<Classifier>> model_;
  Optimizer optimizer_;
  PerReplica<Batch> batch_;
};

}  // namespace

int main(int argc, char** argv) {
  ModelOptions options;
  std::vector<std::string> devices{"cpu:0", "cpu:1"};
  int64_t batch = 32;
  int pairs = 60;
  double block_seconds = 0.25;
  CLI::App app("A training step with factored gradients and without, in turn", "factored_pairs");
  app.add_option("--model", options.name)->check(CLI::IsMember(model_names()))->capture_default_str();
  app.add_option("--widths", options.widths)->delimiter(',')->capture_default_str();
  app.add_option("--batch", batch, "samples of each replica")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--devices", devices, "lanes")->delimiter(',')->capture_default_str();
  app.add_option("--pairs", pairs)->check(CLI::Range(10, 100000))->capture_default_str();
  app.add_option("--block-seconds", block_seconds, "how long each half of a pair takes, about")->capture_default_str();
  bool control = false;
  app.add_flag("--control", control, "off on both sides: what the method finds where there is no difference");
  CLI11_PARSE(app, argc, argv);

  Training off(options, devices, batch, FactoredGradients::kOff);
  Training on(options, devices, batch, control ? FactoredGradients::kOff : FactoredGradients::kAuto);
  const double first = std::min({off.seconds(1), on.seconds(1), off.seconds(2) / 2, on.seconds(2) / 2});
  const int steps = std::max(1, static_cast<int>(block_seconds / first));
  std::vector<double> without, with, ratios;
  for (int i = 0; i < pairs; ++i) {  // each begins as often as the other
    if (i % 2 == 0) without.push_back(off.seconds(steps) / steps);
    with.push_back(on.seconds(steps) / steps);
    if (i % 2 == 1) without.push_back(off.seconds(steps) / steps);
    ratios.push_back(with.back() / without.back());
  }
  std::sort(ratios.begin(), ratios.end());
  // Of the median, without any word about the distribution: the ranks between which it lies in 95 of 100 cases are
  // those of a binomial distribution, n / 2 -+ 0.98 sqrt(n).
  const auto rank = [&](double of) {
    return ratios[static_cast<std::size_t>(std::clamp(of, 0.0, static_cast<double>(pairs - 1)))];
  };
  const double half = 0.98 * std::sqrt(static_cast<double>(pairs));
  const auto row = [](const std::vector<double>& seconds) {
    const Timing t = summarize(seconds);
    return fmt::format("{:.4f} ms (p10 {:.4f}, p90 {:.4f})", 1e3 * t.median, 1e3 * t.p10, 1e3 * t.p90);
  };
  print_table({
      {"off", row(without)},
      {"auto", row(with)},
      {"auto's time over off's",
       fmt::format("{:.4f}, 95 % between {:.4f} and {:.4f} ({} pairs of {} steps each)", rank(pairs / 2.0),
                   rank(pairs / 2.0 - half), rank(pairs / 2.0 + half), pairs, steps)},
  });
  return 0;
}
