#include "tools/train/train_data.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/sources/sources.h"

namespace lockstep::tools {

namespace {

/// What follows `prefix`, where the name begins with it.
std::optional<std::string> after(const std::string& prefix, const std::string& name) {
  if (name.rfind(prefix, 0) != 0) return std::nullopt;
  return name.substr(prefix.size());
}

void require_input_width(const std::string& name, const Dataset& dataset, const std::vector<int64_t>& widths) {
  if (dataset.size() == 0 || widths.empty()) return;
  const int64_t first = 0;
  const int64_t numbers = dataset.read({&first, 1}).input.numel();
  if (widths.front() == numbers) return;
  throw UsageError("LS-FLAG",
                   fmt::format("the model's widths begin with {}, and a sample of --data {} has {} numbers",
                               widths.front(), name, numbers),
                   fmt::format("give --widths that begin with {}", numbers));
}

/// The largest target; -1 where there is none.
int64_t largest_target(const Dataset& dataset) {
  constexpr int64_t kAtOnce = 1024;
  int64_t largest = -1;
  for (int64_t begin = 0; begin < dataset.size(); begin += kAtOnce) {
    std::vector<int64_t> ids;
    for (int64_t id = begin; id < std::min(dataset.size(), begin + kAtOnce); ++id) ids.push_back(id);
    largest = std::max(largest, dataset.read(ids).target.max().item<int64_t>());
  }
  return largest;
}

void require_classes(const std::string& name, const data::Split& split, const ModelOptions& model) {
  constexpr int64_t kOfOtherModels = 10;
  const bool is_mlp = model.name == "mlp";
  if (is_mlp && model.widths.empty()) return;
  const int64_t classes = is_mlp ? model.widths.back() : kOfOtherModels;
  const int64_t largest = std::max(largest_target(split.train), largest_target(split.evaluate));
  if (largest < classes) return;
  throw UsageError(
      "LS-FLAG",
      fmt::format("--model {} chooses among {} classes, and --data {} has the classes 0 to {}",
                  is_mlp ? "mlp by its --widths" : model.name, classes, name, largest),
      fmt::format("give {}--widths that end with at least {}", is_mlp ? "" : "--model mlp, and ", largest + 1));
}

}  // namespace

TrainData load_data(const std::string& name, ModelOptions& model) {
  const auto file = after("text:", name);
  const auto folder = after("idx:", name);
  if (!file && !folder && name != "digits") {
    throw UsageError("LS-FLAG", fmt::format("--data {} is not a data set", name),
                     "use digits, idx:DIR with a folder of MNIST's files, or text:FILE");
  }
  if (file && !reads_text(model.name)) {
    throw UsageError("LS-FLAG", fmt::format("--model {} learns from images and --data {} is text", model.name, name),
                     "use --model gpt, or --data digits or idx:DIR");
  }
  if (!file && reads_text(model.name)) {
    throw UsageError("LS-FLAG", fmt::format("--model {} learns from text and --data {} is images", model.name, name),
                     "use --data text:FILE");
  }
  if (file) {
    data::Text text = data::text(*file, model.context);
    model.vocabulary = static_cast<int64_t>(text.vocabulary.size());
    return {text.train, text.evaluate, std::move(text.vocabulary)};
  }
  const data::Split split = folder ? data::idx(*folder) : data::digits();
  if (model.name == "mlp") require_input_width(name, split.train, model.widths);
  require_classes(name, split, model);
  return {split.train, split.evaluate, {}};
}

}  // namespace lockstep::tools
