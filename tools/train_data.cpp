#include "tools/train_data.h"

#include <fmt/format.h>

#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/data/sources.h"

namespace lockstep::tools {

namespace {

/// What follows `prefix`, where the name begins with it.
std::optional<std::string> after(const std::string& prefix, const std::string& name) {
  if (name.rfind(prefix, 0) != 0) return std::nullopt;
  return name.substr(prefix.size());
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
  return {split.train, split.evaluate, {}};
}

}  // namespace lockstep::tools
