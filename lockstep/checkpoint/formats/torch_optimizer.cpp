// The state of PyTorch's optimizers, as torch::save of C++ and optimizer.state_dict() of Python write it.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/checkpoint/exchange.h"
#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/formats/state_dict.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"

namespace lockstep {

namespace fs = std::filesystem;

using internal::PickledValue;
using internal::shown;

namespace {

/// Whether a number of a file counts something: a whole number that a double has exactly.
bool is_count(double value) {
  constexpr double kMost = 9007199254740992;  // 2^53
  return value >= 0 && value <= kMost && value == std::floor(value);
}

/// A file's numbers, texts and tensors by name.
struct SavedOptimizer {
  std::string what = {};
  std::map<std::string, PickledValue> values = {};
  std::map<std::string, at::Tensor> tensors = {};

  std::optional<double> number(const std::string& name) const {
    if (const auto tensor = tensors.find(name);
        tensor != tensors.end() && tensor->second.numel() == 1 && !tensor->second.is_complex()) {
      return tensor->second.item<double>();
    }
    const auto value = values.find(name);
    if (value == values.end()) return std::nullopt;
    if (const auto* const real = std::get_if<double>(&value->second)) return *real;
    if (const auto* const integer = std::get_if<int64_t>(&value->second)) return static_cast<double>(*integer);
    return std::nullopt;
  }
  /// Under which key the state of a parameter is: C++ writes an address as text, Python a number.
  std::optional<std::string> id(const std::string& name) const {
    const auto value = values.find(name);
    if (value == values.end()) return std::nullopt;
    if (const auto* const text = std::get_if<std::string>(&value->second)) return *text;
    if (const auto* const integer = std::get_if<int64_t>(&value->second)) return std::to_string(*integer);
    return std::nullopt;
  }
};

struct SavedGroup {
  std::vector<std::string> parameters = {};  // by which key the state of each is
  std::optional<double> learning_rate = std::nullopt;
};

std::vector<SavedGroup> groups_of(const SavedOptimizer& saved, const std::string& prefix) {
  const std::string first = prefix + "param_groups.";
  const bool is_of_cpp = saved.id(first + "param_groups/0.params/0").has_value();
  std::vector<SavedGroup> groups;
  while (true) {
    const std::string group = fmt::format("{}{}{}.", first, is_of_cpp ? "param_groups/" : "", groups.size());
    SavedGroup found;
    while (const auto id =
               saved.id(fmt::format("{}params{}{}", group, is_of_cpp ? "/" : ".", found.parameters.size()))) {
      found.parameters.push_back(*id);
    }
    if (found.parameters.empty()) break;
    found.learning_rate = saved.number(group + (is_of_cpp ? "options.lr" : "lr"));
    groups.push_back(std::move(found));
  }
  if (groups.empty()) {
    throw DataError("LS-CHECKPOINT-DAMAGED",
                    fmt::format("{} has no state of an optimizer{}: there are no '{}0'", saved.what,
                                prefix.empty() ? "" : fmt::format(" under '{}'", shown(prefix)), shown(first)),
                    "save it by torch::save(optimizer, file), or name the key under which it is");
  }
  return groups;
}

/// What a file has of one parameter, by name: "exp_avg".
std::map<std::string, at::Tensor> slots_in(const SavedOptimizer& saved, const std::string& begin) {
  std::map<std::string, at::Tensor> slots;
  for (auto one = saved.tensors.lower_bound(begin); one != saved.tensors.end() && one->first.starts_with(begin);
       ++one) {
    slots.emplace(one->first.substr(begin.size()), one->second);
  }
  slots.erase("step");
  return slots;
}

SavedOptimizer read_optimizer(const fs::path& file, const std::string& prefix) {
  SavedOptimizer saved{.what = fmt::format("'{}'", file.string())};
  const std::unique_ptr<internal::OpenFile> opened = internal::host_files().open(file);
  saved.values = internal::read_values(*opened, saved.what);
  const auto wants = [&](const std::string& name) {
    return name.starts_with(prefix + "state.") || name.starts_with(prefix + "param_groups.");
  };
  for (auto& [name, value] : internal::read_state_dict(*opened, saved.what, wants)) {
    saved.tensors.emplace(std::move(name), std::move(value));
  }
  return saved;
}

}  // namespace

std::map<std::string, at::Tensor> load_optimizer_state(const fs::path& file, const Optimizer& optimizer,
                                                       const std::string& key) {
  const std::string prefix = key.empty() ? "" : key + ".";
  const SavedOptimizer saved = read_optimizer(file, prefix);
  const std::vector<SavedGroup> groups = groups_of(saved, prefix);
  std::vector<std::string> ids;
  for (const SavedGroup& group : groups) ids.insert(ids.end(), group.parameters.begin(), group.parameters.end());
  const internal::OptimizerState& here = optimizer.shared_state();
  std::vector<std::string> problems;
  if (ids.size() != here.variables().size()) {
    problems.push_back(fmt::format("it is of {} parameters, and '{}' has {} variables", ids.size(), here.name(),
                                   here.variables().size()));
  }
  if (static_cast<int64_t>(groups.size()) != here.counts().num_groups()) {
    problems.push_back(
        fmt::format("it has {} groups, and '{}' has {}", groups.size(), here.name(), here.counts().num_groups()));
  }
  std::map<std::string, at::Tensor> state = optimizer.state();
  for (std::size_t i = 0; problems.empty() && i < ids.size(); ++i) {
    const std::string whose = fmt::format("{}state.{}.", prefix, ids[i]);
    const std::string begin = here.variables()[i]->name() + "/";
    std::map<std::string, at::Tensor> slots = slots_in(saved, whose);
    const std::optional<double> step = saved.number(whose + "step");
    const bool was_updated = step || !slots.empty();
    for (auto one = state.lower_bound(begin); one != state.end() && one->first.starts_with(begin); ++one) {
      const std::string slot = one->first.substr(begin.size());
      if (slot == "step" || slot.find('/') != std::string::npos) continue;
      const auto found = slots.find(slot);
      if (found != slots.end()) {
        one->second = found->second;
        slots.erase(found);
      } else if (was_updated) {
        problems.push_back(fmt::format("it has no '{}' of '{}'", slot, here.variables()[i]->name()));
      } else {
        one->second = at::zeros_like(one->second);
      }
    }
    for (const auto& [slot, value] : slots) {
      problems.push_back(
          fmt::format("'{}' keeps no '{}' of '{}'", here.name(), shown(slot), here.variables()[i]->name()));
    }
    // SGD counts no steps there: one is enough for its momentum to go on.
    const double steps = step.value_or(was_updated ? 1 : 0);
    if (!is_count(steps)) {
      problems.push_back(fmt::format("'{}' was updated {} times", here.variables()[i]->name(), steps));
      continue;
    }
    state[begin + "step"] = at::scalar_tensor(static_cast<int64_t>(steps), at::kLong);
  }
  if (!problems.empty()) {
    throw UsageError(
        "LS-STATE-MISFIT",
        fmt::format("the optimizer's state in {} does not fit: {}", saved.what, fmt::join(problems, ", ")),
        "make the optimizer over the same parameters, in the same groups and order, with the same options");
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].learning_rate) {
      state[fmt::format("learning_rate/{}", g)] = at::scalar_tensor(*groups[g].learning_rate, at::kDouble);
    }
  }
  return state;
}

}  // namespace lockstep
