// `lockstep bench train`: whole training steps on made data.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/lockstep.h"
#include "tools/bench/bench_report.h"
#include "tools/bench/dump.h"
#include "tools/bench/made_data.h"
#include "tools/console.h"
#include "tools/train/optimizers.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

constexpr int kDumpedSteps = 20;
// With ten times as much, a wide network turns a rounding into a different course within those steps.
constexpr double kLearningRate = 1e-4;

/// The step that is measured.
struct Training {
  Strategy& strategy;
  const ReplicatedModel& model;
  const Optimizer& optimizer;
  const PerReplica<Batch>& batch;

  void steps(int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(mean_loss(*model(ctx), part.input, part.target)).backward();
        optimizer.step(ctx);
      });
    }
  }
};

int64_t parameters_of(const ReplicatedModel& model) {
  int64_t count = 0;
  for (const Variable& variable : model.variables()) {
    if (variable.synchronization() == VariableSynchronization::kOnWrite)
      count += c10::multiply_integers(variable.sizes());
  }
  return count;
}

NamedTensors weights_of(const ReplicatedModel& model) {
  NamedTensors weights;
  for (const Variable& variable : model.variables()) {
    if (variable.synchronization() == VariableSynchronization::kOnWrite)
      weights.emplace_back(variable.name(), variable.read());
  }
  return weights;
}

/// The gradients of one step, added over the replicas, in the weights' order; nothing is updated.
NamedTensors summed_gradients(const Training& training) {
  const auto sums = training.strategy.run(training.batch, [&](ReplicaContext& ctx, const Batch& part) {
    auto& module = *training.model(ctx);
    ctx.scale_loss(mean_loss(module, part.input, part.target)).backward();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
    const auto reduced = ctx.all_reduce(Reduction::kSum, gradients);
    for (at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
    return reduced;
  });
  NamedTensors named = weights_of(training.model);
  for (std::size_t i = 0; i < named.size(); ++i) named[i].second = (*sums.begin())[i];
  return named;
}

/// Leaves model and optimizer as a rival finds them after the same steps.
void dump(const std::string& folder, const Training& training) {
  make_folder(folder);
  dump_tensors(folder, "weights", weights_of(training.model));
  int64_t replica = 0;
  for (const Batch& part : training.batch) {
    dump_tensors(folder, fmt::format("batch{}", replica++), {{"input", part.input}, {"target", part.target}});
  }
  dump_tensors(folder, "gradients", summed_gradients(training));
  training.steps(kDumpedSteps);
  dump_tensors(folder, fmt::format("weights{}", kDumpedSteps), weights_of(training.model));
}

}  // namespace

int bench_train(const BenchTrainOptions& options) {
  const auto strategy = strategy_of(options, options.strategy, options.engine,
                                    options.wire == "exact" ? WireFormat::kExact : WireFormat::kBFloat16);
  std::optional<WholeFile> json;
  if (strategy->is_chief()) json.emplace(options.json);
  const ReplicatedModel model =
      strategy->make_module([&] { return make_model(options.model); }, {.buffers = lockstep::Buffers::kMean});
  const std::optional<Calibration> limits = limits_of(options, *strategy);
  forget_peak_memory();
  const Optimizer optimizer = make_optimizer(*strategy, model, options.optimizer, kLearningRate);
  const int64_t replicas = strategy->num_replicas();
  const int64_t whole = options.batch * replicas;
  const PerReplica<Batch> batch = strategy->per_replica([&](ReplicaId replica) {
    Batch part = made_batch(options.model, options.batch, static_cast<uint64_t>(replica.value()));
    part.global_size = whole;
    return part;
  });
  const Training training{*strategy, model, optimizer, batch};
  if (!options.dump.empty()) dump(options.dump, training);

  // All workers take the chief's time, and so as many steps.
  const auto seconds_of = [&](int64_t count) {
    const double seconds = seconds_for([&] { training.steps(count); });
    return strategy->on_chief([&] { return seconds; });
  };
  const Timing step = measure_seconds(seconds_of, timing_of(options));
  if (!strategy->is_chief()) return 0;

  const double samples_per_second = static_cast<double>(whole) / step.median;
  const int64_t parameters = parameters_of(model);
  nlohmann::ordered_json report = report_of("train", *strategy, limits);
  report["model"] = options.model.name;
  report["widths"] = options.model.name == "mlp" ? options.model.widths : std::vector<int64_t>();
  report["parameters"] = parameters;
  report["batch"] = options.batch;
  report["optimizer"] = options.optimizer;
  report["ms_per_step"] = json_of(step, 1e3);
  report["samples_per_second"] = samples_per_second;
  report["peak_memory_mib"] = static_cast<double>(peak_memory()) / (1 << 20);
  std::string share_text;
  if (limits) {
    const double flops = static_cast<double>(whole) * make_model(options.model)->training_flops();
    const double bytes =
        static_cast<double>(parameters) * static_cast<double>(4 * replicas + update_bytes(options.optimizer));
    const double products = flops / limits->flops_of_all.median;
    const double update =
        bytes / limits->triad_rate(std::numeric_limits<int64_t>::max());  // the caches hold activations
    report["ms_of_products"] = 1e3 * products;
    report["ms_of_update"] = 1e3 * update;
    report["share_of_limits"] = (products + update) / step.median;
    share_text = fmt::format(", {} of the limits: products {:.3f} ms, update {:.3f} ms",
                             percent((products + update) / step.median), 1e3 * products, 1e3 * update);
  }
  print_table({
      {"model", fmt::format("{}, {} parameters, {}", options.model.name, parameters, options.optimizer)},
      {"replicas",
       fmt::format("{} on [{}], batch {} each", replicas, fmt::join(strategy->devices(), ", "), options.batch)},
      {"workers", strategy->describe().substr(0, strategy->describe().find('\n'))},
      {"step", text_of(step) + share_text},
      {"samples/s", fmt::format("{:.1f}", samples_per_second)},
      {"peak memory", fmt::format("{} MiB", peak_memory() >> 20)},
  });
  json->write(report.dump(2) + "\n");
  json->commit();
  return 0;
}

}  // namespace lockstep::tools
