// `lockstep bench step`: from gradients that are ready on all replicas to weights that are updated.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/lockstep.h"
#include "lockstep/variable/gradient_form.h"
#include "lockstep/variable/variable_state.h"
#include "tools/bench/bench_report.h"
#include "tools/bench/shapes.h"
#include "tools/console.h"
#include "tools/train/optimizers.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<Shape> shapes_of(const BenchStepOptions& options) {
  if (!options.shapes.empty()) return parse_shapes("--shapes", options.shapes);
  if (!options.tensors.empty()) return parse_tensors("--tensors", options.tensors);
  if (options.model.name.empty()) {
    throw UsageError("LS-FLAG", "bench step was not told which gradients", "give --shapes, --tensors or --model");
  }
  std::vector<Shape> shapes;
  for (const at::Tensor& parameter : make_model(options.model)->parameters()) shapes.push_back(parameter.sizes().vec());
  return shapes;
}

struct StepTimes {
  Timing step;
  double setting = 0;  // seconds a step in which a replica sets or computes its gradients, not part of the above
};

/// What a variable's gradient is made of: itself, or the input of a linear layer and the gradient of its output.
struct Source {
  at::Tensor gradient;
  at::Tensor input;

  void set_gradient(at::Tensor& value) const {
    if (!input.defined()) {
      value.mutable_grad() = gradient;
    } else {
      at::linear(input, value).backward(gradient);
    }
  }
};

Source make_source(at::IntArrayRef sizes, int64_t samples, double number) {
  if (samples == 0 || sizes.size() != 2) return {at::full(sizes, number), {}};
  return {at::full({samples, sizes[0]}, number), at::ones({samples, sizes[1]})};
}

StepTimes measure_step(Strategy& strategy, const std::vector<Variable>& variables, const Optimizer& optimizer,
                       int64_t samples, const TimingOptions& options) {
  const PerReplica<std::vector<Source>> prepared = strategy.per_replica([&](ReplicaId replica) {
    std::vector<Source> sources;
    for (const Variable& variable : variables) {
      sources.push_back(make_source(variable.sizes(), samples, 1e-3 * static_cast<double>(replica.value() + 1)));
    }
    return sources;
  });
  double setting = 0;
  int64_t steps = 0;
  const auto seconds_of = [&](int64_t calls) {
    const auto spent = strategy.run(prepared, [&](ReplicaContext& ctx, const std::vector<Source>& sources) {
      std::vector<at::Tensor> values;
      for (const Variable& variable : variables) values.push_back(variable.value(ctx));
      const at::Tensor token = at::zeros({1});
      Clock::duration of_step{}, of_setting{};
      for (int64_t i = 0; i < calls; ++i) {
        const auto begin = Clock::now();
        for (std::size_t v = 0; v < values.size(); ++v) sources[v].set_gradient(values[v]);
        const auto set = Clock::now();
        ctx.all_reduce(Reduction::kSum, token);  // all are ready
        const auto ready = Clock::now();
        optimizer.step(ctx);
        of_step += Clock::now() - ready;
        of_setting += set - begin;
      }
      return std::pair(std::chrono::duration<double>(of_step).count(),
                       std::chrono::duration<double>(of_setting).count());
    });
    setting += spent.begin()->second;
    steps += calls;
    return spent.begin()->first;
  };
  TimingOptions timing = options;
  timing.warm_up_calls = 3;
  const Timing step = measure_seconds(seconds_of, timing);
  return {step, setting / static_cast<double>(steps)};
}

/// The bytes of a replica's gradient: what is written, or the factors.
double gradient_bytes(const Variable& variable, int64_t samples) {
  if (variable.state().gradient_form() != internal::GradientForm::kFactors)
    return 4 * static_cast<double>(c10::multiply_integers(variable.sizes()));
  return 4 * static_cast<double>(samples * (variable.sizes()[0] + variable.sizes()[1]));
}

}  // namespace

int bench_step(const BenchStepOptions& options) {
  const std::vector<Shape> shapes = shapes_of(options);
  WholeFile json(options.json);
  const auto strategy = strategy_of(options);
  const int64_t replicas = strategy->num_replicas();
  const double elements = count_elements(shapes);
  double operands = 0;  // of the products that compute gradients
  for (const Shape& shape : shapes) {
    if (options.samples > 0 && shape.size() == 2)
      operands += static_cast<double>(options.samples) * static_cast<double>(shape[0] + shape[1]);
  }
  check_fits(elements * static_cast<double>(4 * replicas + 24) + operands * static_cast<double>(4 * replicas),
             "this set of gradients");
  const std::optional<Calibration> limits = limits_of(options, *strategy);

  std::vector<Variable> variables;
  for (const Shape& shape : shapes) variables.push_back(strategy->make_variable(at::ones(shape)));
  const Optimizer optimizer = make_optimizer(*strategy, variables, options.optimizer);
  const StepTimes times = measure_step(*strategy, variables, optimizer, options.samples, timing_of(options));

  double of_gradients = 0;
  std::size_t factored = 0;
  for (const Variable& variable : variables) {
    of_gradients += static_cast<double>(replicas) * gradient_bytes(variable, options.samples);
    if (variable.state().gradient_form() == internal::GradientForm::kFactors) ++factored;
  }
  const double bytes = of_gradients + elements * static_cast<double>(update_bytes(options.optimizer));
  const double rate = bytes / times.step.median;
  nlohmann::ordered_json report = report_of("step", *strategy, limits);
  report["optimizer"] = options.optimizer;
  report["tensors"] = shapes.size();
  report["samples"] = options.samples;
  report["tensors_as_factors"] = factored;
  report["parameters"] = static_cast<int64_t>(elements);
  report["ms_per_step"] = json_of(times.step, 1e3);
  report["ms_setting_gradients"] = 1e3 * times.setting;
  report["gb_per_second"] = rate / 1e9;
  std::string speed = fmt::format("{:.1f} GB/s", rate / 1e9);
  if (limits) {
    const double touched = of_gradients + elements * static_cast<double>(update_bytes(options.optimizer) / 2);
    const double share = rate / limits->triad_rate(static_cast<int64_t>(touched));
    report["share_of_triad_bandwidth"] = share;
    speed += fmt::format(", {} of the triad's", percent(share));
  }
  print_table({
      {"gradients", fmt::format("{}, {} of them as factors, {:.0f} elements, {}",
                                internal::counted(static_cast<int64_t>(shapes.size()), "tensor"), factored, elements,
                                options.optimizer)},
      {"replicas", fmt::format("{} on [{}]", replicas, fmt::join(strategy->devices(), ", "))},
      {"reduce and step", text_of(times.step)},
      {"bytes moved", speed},
      {"setting or computing .grad, apart", fmt::format("{:.4f} ms", 1e3 * times.setting)},
  });
  json.write(report.dump(2) + "\n");
  json.commit();
  return 0;
}

}  // namespace lockstep::tools
