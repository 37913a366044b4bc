// The metrics that are the mean of a value: accuracy, top-k, errors, perplexity, and values of the program's own.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/train/metrics/metric_part.h"
#include "lockstep/train/trainer_metrics.h"

namespace lockstep::metrics {

namespace {

using internal::MetricArguments;
using internal::MetricPart;
using internal::numbers_of;
using internal::share;

/// A spec whose sums are two, those of weighted values and of weights. `sums(arguments, output, batch)` gives them.
template <class Sums, class Result>
MetricSpec mean_spec(const char* kind, std::string name, bool higher_is_better, Sums sums, Result result) {
  return {.name = name,
          .sums = 2,
          .update =
              [kind, name, sums = std::move(sums)](const at::Tensor& output, const Batch& batch) {
                return MetricCounts{.sums = sums(MetricArguments(kind, name), output, batch)};
              },
          .results =
              [name, result](const MetricCounts& whole) {
                const auto counted = numbers_of(whole.sums);
                return std::map<std::string, double>{{name, result(share(counted[0], counted[1]))}};
              },
          .higher_is_better = higher_is_better};
}

constexpr auto kAsItIs = [](double mean) { return mean; };

/// Output minus target.
at::Tensor differences(const MetricArguments& arguments, const MetricPart& part) {
  arguments.require_real(part.output, "outputs");
  arguments.require_real(part.target, "targets");
  return arguments.differences(internal::aligned(part.output, part.target),
                               internal::aligned(part.target, part.output));
}

/// `tensor`, which a function of the program's own gave, in the host's memory.
at::Tensor given(const MetricArguments& arguments, const at::Tensor& tensor, const char* what) {
  const at::Tensor here = tensor.defined() ? tensor.detach().to(at::kCPU) : tensor;
  arguments.require_real(here, what);
  return here;
}

}  // namespace

MetricSpec accuracy(AccuracyOptions options) {
  // Sums: the weights of right decisions, if outputs are probabilities and if they are logits; all weights; and how
  // many outputs are no probabilities.
  const std::string name = options.name;
  return {
      .name = name,
      .sums = 4,
      .update =
          [name](const at::Tensor& output, const Batch& batch) {
            const MetricArguments arguments("metrics::accuracy", name);
            const MetricPart part(arguments, output, batch);
            if (const auto binary = internal::binary_part(arguments, part)) {
              const auto right = [&](const at::Tensor& decided) {
                return internal::weight_of(decided.eq(binary->labels.to(at::kBool)), binary->weights);
              };
              return MetricCounts{.sums = at::stack({right(binary->as_share), right(binary->as_logit),
                                                     binary->weights.sum(), binary->outside.sum().to(at::kDouble)})};
            }
            const at::Tensor wanted = arguments.classes_of(part.target);
            const at::Tensor weights = arguments.counted(wanted, part.weights);
            const at::Tensor right =
                internal::weight_of(arguments.predicted_classes(part.output, wanted).eq(wanted), weights);
            return MetricCounts{.sums = at::stack({right, right, weights.sum(), at::zeros({}, at::kDouble)})};
          },
      .results =
          [name, outputs = options.outputs](const MetricCounts& whole) {
            const auto counted = numbers_of(whole.sums);
            const double right = counted[internal::are_logits(outputs, counted[3]) ? 1 : 0];
            return std::map<std::string, double>{{name, share(right, counted[2])}};
          }};
}

MetricSpec top_k(int64_t k) {
  if (k < 1) {
    throw UsageError("LS-OPTION", fmt::format("metrics::top_k was asked for the top {}", k), "choose k from 1");
  }
  return mean_spec(
      "metrics::top_k", fmt::format("top_{}_accuracy", k), true,
      [k](const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) {
        const MetricPart part(arguments, output, batch);
        const at::Tensor wanted = arguments.classes_of(part.target);
        return arguments.weighted_sums(arguments.are_among_top(part.output, wanted, k),
                                       arguments.counted(wanted, part.weights));
      },
      kAsItIs);
}

MetricSpec mean_squared_error() {
  return mean_spec(
      "metrics::mean_squared_error", "mean_squared_error", false,
      [](const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) {
        const MetricPart part(arguments, output, batch);
        return arguments.weighted_sums(differences(arguments, part).square(), part.weights);
      },
      kAsItIs);
}

MetricSpec mean_absolute_error() {
  return mean_spec(
      "metrics::mean_absolute_error", "mean_absolute_error", false,
      [](const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) {
        const MetricPart part(arguments, output, batch);
        return arguments.weighted_sums(differences(arguments, part).abs(), part.weights);
      },
      kAsItIs);
}

MetricSpec perplexity() {
  return mean_spec(
      "metrics::perplexity", "perplexity", false,
      [](const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) {
        const MetricPart part(arguments, output, batch);
        const at::Tensor wanted = arguments.classes_of(part.target);
        return arguments.weighted_sums(arguments.negative_log_likelihoods(part.output, wanted),
                                       arguments.counted(wanted, part.weights));
      },
      [](double mean) { return std::exp(mean); });
}

MetricSpec mean(std::string name, std::function<at::Tensor(const at::Tensor& output, const Batch& batch)> fn,
                bool higher_is_better) {
  if (!fn) throw UsageError("LS-OPTION", "metrics::mean '" + name + "' was given no function", "give a function");
  return mean_spec(
      "metrics::mean", std::move(name), higher_is_better,
      [fn = std::move(fn)](const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) {
        const at::Tensor values = given(arguments, fn(output.defined() ? output.detach() : output, batch), "values");
        if (values.dim() > 0) {
          if (values.size(0) != batch.size()) {
            arguments.refuse(
                "LS-SHAPE",
                fmt::format("values as {} for a part of {} rows", internal::described_operand(values), batch.size()),
                "give a value for each row, or the mean as a tensor without dimensions");
          }
          const MetricPart part(arguments, values, batch);
          return arguments.weighted_sums(part.output, part.weights);
        }
        if (!sample_weights(batch).defined()) {
          return arguments.weighted_sums(values, static_cast<double>(batch.samples()));
        }
        const MetricPart part(arguments, sample_weights(batch), batch);
        const at::Tensor weights = arguments.expanded(part.weights, part.output.sizes());
        return arguments.weighted_sums(values, weights.sum().item<double>());
      },
      kAsItIs);
}

MetricSpec mean(std::string name, std::function<double(const at::Tensor& output, const Batch& batch)> fn,
                bool higher_is_better) {
  if (!fn) throw UsageError("LS-OPTION", "metrics::mean '" + name + "' was given no function", "give a function");
  return mean(
      std::move(name),
      [fn = std::move(fn)](const at::Tensor& output, const Batch& batch) -> at::Tensor {
        return at::full({}, fn(output, batch), at::kDouble);
      },
      higher_is_better);
}

MetricSpec custom(std::string name, int64_t sums,
                  std::function<at::Tensor(const at::Tensor& output, const Batch& batch)> count,
                  std::function<double(const at::Tensor& sums)> result, bool higher_is_better) {
  if (!count || !result || sums < 1) {
    throw UsageError("LS-OPTION",
                     fmt::format("metrics::custom '{}' was given {} sums{}", name, sums,
                                 !count || !result ? " and lacks a function" : ""),
                     "give a number of sums from 1, and both functions");
  }
  return {.name = name,
          .sums = sums,
          .update =
              [name, sums, count = std::move(count)](const at::Tensor& output, const Batch& batch) {
                const MetricArguments arguments("metrics::custom", name);
                const at::Tensor counted = given(arguments, count(output, batch), "sums");
                if (counted.dim() != 1 || counted.size(0) != sums) {
                  arguments.refuse("LS-SHAPE", fmt::format("sums as {}", internal::described_operand(counted)),
                                   fmt::format("give {} sums, in a tensor of one dimension", sums));
                }
                return MetricCounts{.sums = counted.to(at::kDouble)};
              },
          .results =
              [name, result = std::move(result)](const MetricCounts& whole) {
                return std::map<std::string, double>{{name, result(whole.sums)}};
              },
          .higher_is_better = higher_is_better};
}

}  // namespace lockstep::metrics
