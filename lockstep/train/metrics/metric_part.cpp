#include "lockstep/train/metrics/metric_part.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep {

namespace internal::inline train {

namespace {

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return tensor.device().is_cpu() ? tensor.detach() : tensor.detach().to(at::kCPU);
}

/// The rows that are no padding.
at::Tensor samples_of(const MetricArguments& arguments, const at::Tensor& tensor, const Batch& batch,
                      const char* what) {
  if (batch.padding == 0 || !tensor.defined()) return on_host(tensor);
  if (tensor.dim() == 0 || tensor.size(0) != batch.size()) {
    arguments.refuse("LS-SHAPE",
                     fmt::format("{} as {} for a part of {} rows, {} of which are padding", what,
                                 described_operand(tensor), batch.size(), batch.padding),
                     "give a row for each row of the batch");
  }
  return on_host(tensor.narrow(0, 0, batch.samples()));
}

}  // namespace

MetricPart::MetricPart(const MetricArguments& arguments, const at::Tensor& output, const Batch& batch)
    : output(samples_of(arguments, output, batch, "outputs")),
      target(samples_of(arguments, batch.target, batch, "targets")),
      weights(samples_of(arguments, metrics::sample_weights(batch), batch, "weights")) {}

at::Tensor aligned(const at::Tensor& tensor, const at::Tensor& other) {
  const bool has_more = tensor.dim() == other.dim() + 1 && tensor.dim() > 1 && tensor.size(1) == 1;
  return has_more ? tensor.squeeze(1) : tensor;
}

std::optional<BinaryPart> binary_part(const MetricArguments& arguments, const MetricPart& part) {
  arguments.require_real(part.output, "outputs");
  arguments.require_real(part.target, "targets");
  if (!at::isFloatingType(part.output.scalar_type())) return std::nullopt;
  const at::Tensor output = aligned(part.output, part.target);
  const at::Tensor target = aligned(part.target, part.output);
  if (output.sizes() != target.sizes()) return std::nullopt;

  BinaryPart binary;
  binary.scores = output.to(at::kDouble);
  binary.labels = target.to(at::kDouble);
  binary.weights = arguments.expanded(part.weights, output.sizes());
  at::Tensor known = binary.labels.eq(0).logical_or(binary.labels.eq(1));
  if (at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    const at::Tensor ignored = target.eq(kIgnoredClass);
    known = known.logical_or(ignored);
    binary.labels = binary.labels.masked_fill(ignored, 0);
    binary.weights = binary.weights.masked_fill(ignored, 0);
  }
  if (!known.all().item<bool>()) {
    arguments.refuse(
        "LS-TARGET",
        fmt::format("target {}", target.masked_select(known.logical_not())[0].to(at::kDouble).item<double>()),
        "give targets of 0 and 1, or logits with the classes as dimension 1");
  }
  binary.as_share = binary.scores.gt(0.5);
  binary.as_logit = binary.scores.gt(0);
  binary.outside = binary.scores.lt(0).logical_or(binary.scores.gt(1)).logical_and(binary.weights.gt(0));
  return binary;
}

at::Tensor weight_of(const at::Tensor& which, const at::Tensor& weights) { return weights.mul(which).sum(); }

std::vector<double> numbers_of(const at::Tensor& sums) {
  const at::Tensor flat = sums.contiguous();
  const auto numbers = host_numbers<double>(flat);
  return {numbers.begin(), numbers.end()};
}

std::vector<std::vector<double>> sorted_rows(const at::Tensor& rows) {
  std::vector<std::vector<double>> sorted;
  if (!rows.defined()) return sorted;
  const at::Tensor flat = rows.contiguous();
  const double* const first = host_numbers<double>(flat).data();
  const int64_t columns = flat.size(1);
  for (int64_t row = 0; row < flat.size(0); ++row) {
    sorted.emplace_back(first + row * columns, first + (row + 1) * columns);
  }
  const bool has_nan = flat.isnan().any().item<bool>();  // which have no order
  if (!has_nan) std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace internal::train

at::Tensor metrics::sample_weights(const Batch& batch) {
  const auto one = batch.more.find("weight");
  const auto other = batch.more.find("weights");
  if (one == batch.more.end()) return other == batch.more.end() ? at::Tensor() : other->second;
  if (other == batch.more.end()) return one->second;
  throw UsageError("LS-BATCH", "a batch has both an entry 'weight' and an entry 'weights'",
                   "give the samples' weights under one of these names, and rename the other");
}

}  // namespace lockstep
