#include "lockstep/data/deal/collated_part.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/data/rows.h"
#include "lockstep/data/stages/sample_error.h"
#include "lockstep/data/stages/sample_random.h"
#include "lockstep/data/stages/stage_times.h"

namespace lockstep::internal::inline data {

namespace {

/// Its random stream is none of those of map()s, which count from 0.
constexpr int64_t kBehindAllMaps = -1;

/// "3 samples (7, 0, 4)", for messages.
std::string text_of_samples(std::span<const int64_t> ids) {
  constexpr std::size_t kShown = 8;
  const auto shown = ids.first(std::min(ids.size(), kShown));
  return fmt::format("{} ({}{})", counted(static_cast<int64_t>(ids.size()), "sample"), fmt::join(shown, ", "),
                     ids.size() > kShown ? ", ..." : "");
}

/// The ids that the function gave, where they are those of the samples in any order.
std::optional<std::vector<int64_t>> order_of(const at::Tensor& given, std::vector<int64_t> ids) {
  if (given.layout() != at::kStrided || !given.device().is_cpu() || given.scalar_type() != at::kLong ||
      given.dim() != 1) {
    return std::nullopt;
  }
  const at::Tensor flat = given.contiguous();
  const std::vector<int64_t> theirs(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  std::vector<int64_t> sorted = theirs;
  std::sort(sorted.begin(), sorted.end());
  std::sort(ids.begin(), ids.end());
  return sorted == ids ? std::optional(theirs) : std::nullopt;
}

bool has_sizes(const at::Tensor& tensor) { return tensor.defined() && !tensor.is_nested(); }

/// A tensor of these sizes, none above those of `tensor`, with its first elements.
at::Tensor shrunk(const at::Tensor& tensor, at::IntArrayRef sizes) {
  if (sizes == tensor.sizes()) return tensor;
  if (tensor.layout() != at::kStrided) return at::empty(sizes, tensor.options());
  at::Tensor rest = tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d) rest = rest.narrow(d, 0, sizes[static_cast<std::size_t>(d)]);
  return rest.clone(at::MemoryFormat::Contiguous);
}

/// What a function makes of no samples, if it adds as much for the first sample as for the second. `two` is undefined
/// where nothing is known of two.
at::Tensor of_none(const at::Tensor& one, const at::Tensor& two) {
  if (!has_sizes(one) || one.dim() == 0) return one;
  std::vector<int64_t> sizes = one.sizes().vec();
  if (!has_sizes(two) || two.dim() != one.dim()) {
    sizes.front() = 0;
  } else {
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      sizes[d] = std::clamp<int64_t>(2 * sizes[d] - two.size(static_cast<int64_t>(d)), 0, sizes[d]);
    }
  }
  return shrunk(one, sizes);
}

}  // namespace

void check_collate(const DistributeOptions& options, const lockstep::data::Source* source) {
  const Collate& collate = options.collate;
  if (!collate || collate.takes_batches()) {
    if (source != nullptr) source->require_batches();
  } else if (source == nullptr || !source->read_as(collate.sample_type(), {})) {
    throw UsageError(
        "LS-COLLATE",
        fmt::format("distribute was given a .collate that takes samples of the type {}, and {} has none",
                    c10::demangle(collate.sample_type().name()), source == nullptr ? "a stream" : source->describe()),
        "let it take a std::vector<lockstep::Batch>, or the examples of a torch::data data set that is given to "
        "from_torch, with no map(), batch(), zip() or cache() behind it");
  } else if (options.sharding == Sharding::kOff) {
    throw UsageError(
        "LS-COLLATE",
        fmt::format("distribute was given a .collate that takes samples of the type {}, and Sharding::kOff",
                    c10::demangle(collate.sample_type().name())),
        "let it take a std::vector<lockstep::Batch>: with kOff several workers read a data set as a stream");
  }
  if (collate && options.remainder == Remainder::kPad) {
    throw UsageError(
        "LS-COLLATE", "distribute was given .collate and Remainder::kPad",
        "choose kKeep or kDrop: only the function knows what a row of padding is, and parts that are short "
        "or empty are weighted by their samples");
  }
}

SampleToCollate batch_to_collate(Batch row) {
  const int64_t id = row.ids[0].item<int64_t>();
  row.global_size = 1;
  row.padding = 0;
  return {std::make_shared<Batch>(std::move(row)), id};
}

std::vector<SampleToCollate> samples_to_collate(const Collate& collate, const Dataset& dataset,
                                                std::span<const int64_t> places) {
  std::vector<SampleToCollate> samples;
  if (collate.takes_batches()) {
    for (const int64_t& place : places) samples.push_back(batch_to_collate(dataset.read({&place, 1})));
    return samples;
  }
  const lockstep::data::Source& source = *dataset.source();
  const std::vector<int64_t> ids = source.ids_at(places);
  std::optional<std::vector<AnySample>> values;
  try {
    const StageScope stage(source);
    values = source.read_as(collate.sample_type(), places);
  } catch (const Error&) {
    throw;
  } catch (...) {
    std::throw_with_nested(DataError("LS-SOURCE",
                                     fmt::format("{} was asked for {} and failed: {}", source.describe(),
                                                 text_of_samples(ids), message_of(std::current_exception())),
                                     "look into the data set; std::rethrow_if_nested gives the exception itself"));
  }
  if (!values || values->size() != places.size() || ids.size() != places.size()) {
    throw DataError("LS-SOURCE",
                    fmt::format("{} was asked for {} and gave {}", source.describe(), text_of_samples(ids),
                                values ? values->size() : 0),
                    "it must give one sample for each index");
  }
  for (std::size_t i = 0; i < ids.size(); ++i) samples.push_back({std::move((*values)[i]), ids[i]});
  return samples;
}

PartMaker::PartMaker(Collate collate, uint64_t seed, int64_t epoch, std::string data, std::optional<int64_t> worker)
    : collate_(std::move(collate)),
      pass_{.seed = seed, .epoch = epoch, .maps_after = kBehindAllMaps},
      data_(std::move(data)),
      worker_(worker) {}

std::string PartMaker::text_of(std::span<const int64_t> ids, ReplicaId replica) const {
  return fmt::format("{} of {}, the part of replica {}{}", text_of_samples(ids), data_, replica.value(),
                     worker_ ? fmt::format(" on worker {}", *worker_) : "");
}

Batch PartMaker::part(std::vector<SampleToCollate> samples, ReplicaId replica) const {
  std::vector<int64_t> ids;
  std::vector<AnySample> values;
  uint64_t drawn_for = 0;
  for (SampleToCollate& one : samples) {
    ids.push_back(one.id);
    values.push_back(std::move(one.value));
    drawn_for = mixed(drawn_for, static_cast<uint64_t>(one.id));
  }
  const ReadingScope scope;
  Batch part;
  try {
    const StageScope stage("collate of " + data_);
    SampleRandom random(pass_);
    random.begin(static_cast<int64_t>(drawn_for));
    part = collate_(std::move(values));
  } catch (...) {
    std::throw_with_nested(DataError("LS-COLLATE",
                                     fmt::format("the collate function failed on {}: {}", text_of(ids, replica),
                                                 message_of(std::current_exception())),
                                     "look into it; std::rethrow_if_nested gives the exception itself"));
  }
  if (!part.input.defined()) {
    throw DataError("LS-COLLATE",
                    fmt::format("the collate function gave a Batch without an input for {}", text_of(ids, replica)),
                    "set Batch::input; other tensors stand in target and in more");
  }
  if (part.ids.defined()) {
    auto order = order_of(part.ids, ids);
    if (!order) {
      throw DataError(
          "LS-COLLATE", fmt::format("the collate function gave other ids for {}", text_of(ids, replica)),
          "leave Batch::ids undefined, or give the ids of all its samples, int64 [samples], in any order; samples are "
          "left out by filter(), before they are dealt");
    }
    ids = std::move(*order);
  }
  part.ids = ids_tensor(ids);  // a batch is known by this memory
  part.padding = 0;
  part.origin.clear();
  for_each_tensor(part, [](at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad()) tensor = tensor.detach();
  });
  return part;
}

Batch PartMaker::without_samples(FunctionRef<SampleToCollate()> sample, ReplicaId replica) const {
  std::vector<SampleToCollate> samples;
  samples.push_back(sample());
  Batch none = part(std::move(samples), replica);
  Batch two;
  try {
    std::vector<SampleToCollate> twice;
    twice.push_back(sample());
    twice.push_back(sample());
    two = part(std::move(twice), replica);
  } catch (const DataError& error) {
    if (error.code() != "LS-COLLATE" || !is_about_sample(std::current_exception())) throw;
  }
  const at::NoGradGuard no_grad;
  none.input = of_none(none.input, two.input);
  none.target = of_none(none.target, two.target);
  for (auto& [name, tensor] : none.more) {
    const auto same = two.more.find(name);
    tensor = of_none(tensor, same == two.more.end() ? at::Tensor() : same->second);
  }
  none.ids = ids_tensor({});
  return none;
}

}  // namespace lockstep::internal::data
