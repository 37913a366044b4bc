// `lockstep bench train`: whole training steps on made data.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/fingerprint.h"
#include "tools/bench/bench.h"
#include "tools/bench/made_data.h"
#include "tools/bench/timing.h"
#include "tools/console.h"
#include "tools/optimizers.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

int64_t parameters_of(const ReplicatedModel& model) {
  int64_t count = 0;
  for (const Variable& variable : model.variables()) {
    if (variable.synchronization() == VariableSynchronization::kOnWrite) count += variable.read().numel();
  }
  return count;
}

}  // namespace

int bench_train(const BenchTrainOptions& options) {
  WholeFile json(options.json);
  const auto strategy =
      make_strategy("mirrored", {.devices = options.devices,
                                 .replicas = options.replicas,
                                 .threads_per_replica = static_cast<int>(options.threads_per_replica)});
  const ReplicatedModel model = strategy->make_module([&] { return make_model(options.model); });
  const Optimizer optimizer = make_optimizer(*strategy, model, options.optimizer);
  const int64_t whole = options.batch * strategy->num_replicas();
  const PerReplica<Batch> batch = strategy->per_replica([&](ReplicaId replica) {
    Batch part = made_batch(options.model, options.batch, static_cast<uint64_t>(replica.value()));
    part.global_size = whole;
    return part;
  });
  const auto steps = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      strategy->run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(mean_loss(*model(ctx), part.input, part.target)).backward();
        optimizer.step(ctx);
      });
    }
  };
  const Timing step =
      measure(steps, {.blocks = static_cast<int>(options.blocks), .block_seconds = options.block_seconds});
  const double samples_per_second = static_cast<double>(whole) / step.median;
  const int64_t parameters = parameters_of(model);
  print_table({
      {"model", fmt::format("{}, {} parameters", options.model.name, parameters)},
      {"replicas", fmt::format("{} on [{}], batch {} each", strategy->num_replicas(),
                               fmt::join(strategy->devices(), ", "), options.batch)},
      {"step", fmt::format("{:.4f} ms (p10 {:.4f}, p90 {:.4f})", 1e3 * step.median, 1e3 * step.p10, 1e3 * step.p90)},
      {"samples/s", fmt::format("{:.1f}", samples_per_second)},
  });
  const nlohmann::ordered_json report{
      {"bench", "train"},
      {"model", options.model.name},
      {"widths", options.model.name == "mlp" ? options.model.widths : std::vector<int64_t>()},
      {"parameters", parameters},
      {"batch", options.batch},
      {"replicas", strategy->num_replicas()},
      {"devices", strategy->devices()},
      {"optimizer", options.optimizer},
      {"ms_per_step", {{"median", 1e3 * step.median}, {"p10", 1e3 * step.p10}, {"p90", 1e3 * step.p90}}},
      {"samples_per_second", samples_per_second},
      {"fingerprint", internal::platform_fingerprint()},
  };
  json.write(report.dump(2) + "\n");
  json.commit();
  return 0;
}

}  // namespace lockstep::tools
