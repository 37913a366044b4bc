#include "lockstep/checkpoint/take_image.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/late_values.h"
#include "lockstep/checkpoint/saved_values.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/optim/forms/sliced_slots.h"
#include "lockstep/replica/pool/cores.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/served_state.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"
#include "lockstep/version.h"

namespace lockstep::internal::inline checkpoint {

using Kind = StateItem::Kind;

const char* kind_text(Kind kind) {
  switch (kind) {
    case Kind::kMirrored: return "mirrored";
    case Kind::kOnRead: return "on-read";
    case Kind::kSlot: return "slot";
    case Kind::kStepCount: return "step-count";
    case Kind::kLearningRate: return "learning-rate";
    case Kind::kNumber: return "number";
    case Kind::kCursor: return "cursor";
    case Kind::kOption: return "option";
    case Kind::kRule: return "rule";
  }
  throw InternalError("LS-INTERNAL", "an item of a run's state has no kind", "please report this");
}

lockstep::data::Cursor cursor_of(const std::string& text, const std::string& what) {
  try {
    return lockstep::data::cursor_from_json(text);
  } catch (const UsageError& error) {
    throw_damaged(what, fmt::format("cannot be read: {}", error.what()));
  }
}

namespace {

/// A value whose replica is not known yet: its place in the image, and its values by local replica.
struct Replicas {
  std::size_t before;  // how many tensors of the image come before it
  std::string kind, name, aggregation;
  std::vector<at::Tensor> mine;
};

RecordedNumbers numbers_of(const StateItem& item, const at::Tensor& value) {
  RecordedNumbers numbers{.kind = kind_text(item.kind), .name = item.name};
  if (value.is_floating_point()) {
    numbers.real = value.item<double>();
  } else {
    const at::Tensor flat = value.contiguous().flatten();
    const std::span<const int64_t> integers = host_numbers<int64_t>(flat);
    numbers.integers.assign(integers.begin(), integers.end());
  }
  return numbers;
}

bool is_tensor(Kind kind) { return kind == Kind::kMirrored || kind == Kind::kOnRead || kind == Kind::kSlot; }

std::string checked_json(const std::string& name, const std::string& text) {
  if (!nlohmann::json::accept(text)) {
    throw UsageError("LS-NAME", fmt::format("the value tracked as '{}' is not JSON: {}", shown(name), shown(text)),
                     "return a JSON value, or the text of one");
  }
  try {
    // As deep as it will stand in a manifest, by the rules by which it will be read.
    parse_object(fmt::format("{{\"values\": {{\"value\": {}}}}}", text), "its text", kManifestDepth);
    return text;
  } catch (const DataError& error) {
    throw UsageError("LS-NAME",
                     fmt::format("the value tracked as '{}' could not be restored: {}", shown(name), error.what()),
                     "give each key once, and nest less deeply");
  }
}

/// Looks for foreign writes in all variables, on all cores: nothing trains meanwhile.
void check_memory(const Strategy& strategy) {
  const std::vector<Variable> variables = strategy.variables();
  ReadPool pool(static_cast<int64_t>(cores_of_this_process().size()));
  pool.run(static_cast<int64_t>(variables.size()),
           [&](int64_t i) { variables[static_cast<std::size_t>(i)].state().check_memory(); });
}

/// Gradients that wait for a step are not part of a checkpoint: one between two micro-batches lacks them. Those that
/// another network's loss has left, and that the next step begins by dropping, are not waited for.
void look_for_gradients(const Strategy& strategy) {
  const std::vector<Variable> variables = strategy.variables();
  const auto found = std::find_if(variables.begin(), variables.end(), [&](const Variable& one) {
    return one.state().has_gradient() && !StrategyAccess::drops_gradients_of(strategy, one.state());
  });
  if (found == variables.end()) return;
  StrategyAccess::findings(strategy).add("LS-GRADIENT-NOT-SAVED", "Checkpoint::save", strategy.step(), [&] {
    return fmt::format(
        "step {}: a checkpoint is saved while '{}' has a gradient that no step has used: the checkpoint does not have "
        "it, and a run that is restored goes on without it; save after the optimizer's step, or drop the gradient "
        "(zero_grad) if nothing needs it",
        strategy.step(), shown(found->name()));
  });
}

/// The memory of slots of which each worker has only its slices. Where one of them is not contiguous, its bytes are not
/// in the order in which a checkpoint has them: then all are made whole, and there are none.
std::map<std::string, at::Tensor> sliced_slots(const Strategy& strategy) {
  std::map<std::string, at::Tensor> sliced;
  bool are_in_order = true;
  for (const auto& slots : StrategyAccess::sliced_slots(strategy)) {
    for (const SlicedSlots::Own& one : slots->own()) {
      are_in_order = are_in_order && one.memory.is_contiguous();
      if (one.is_sliced) sliced.emplace(one.name, one.memory);
    }
  }
  if (are_in_order) return sliced;
  StrategyAccess::gather_slots(strategy);
  return {};
}

/// Puts the values of all replicas into the image, at their places.
void add_replicas(Image& image, const Strategy& strategy, const std::vector<Replicas>& items) {
  const std::size_t local = items.empty() ? 0 : items.front().mine.size();
  std::vector<std::vector<at::Tensor>> all(items.size());  // by item and replica
  if (strategy.num_workers() == 1) {
    for (std::size_t i = 0; i < items.size(); ++i) all[i] = items[i].mine;
  } else {
    std::vector<at::Tensor> mine;
    for (std::size_t r = 0; r < local; ++r) {
      NamedTensors named;
      for (std::size_t i = 0; i < items.size(); ++i) named.emplace_back(std::to_string(i), items[i].mine[r]);
      mine.push_back(packed(named));
    }
    for (const at::Tensor& bytes : bytes_of_all_replicas(strategy, mine)) {
      for (auto& [name, value] : unpacked(bytes)) all.at(std::stoul(name)).push_back(std::move(value));
    }
  }
  std::vector<ImageTensor> merged;
  std::size_t next = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (; next < items[i].before; ++next) merged.push_back(std::move(image.tensors[next]));
    for (std::size_t r = 0; r < all[i].size(); ++r) {
      merged.push_back({.kind = items[i].kind,
                        .name = items[i].name,
                        .replica = static_cast<int64_t>(r),
                        .value = std::move(all[i][r]),
                        .is_borrowed = strategy.num_workers() == 1,
                        .aggregation = items[i].aggregation});
    }
  }
  for (; next < image.tensors.size(); ++next) merged.push_back(std::move(image.tensors[next]));
  image.tensors = std::move(merged);
}

}  // namespace

void require_at_rest(const Strategy& strategy, const Tracked& tracked, const char* call) {
  tracked.process.require_here(call);
  if (const ServedState* const served = served_state_of(strategy)) return served->require_outside_of_steps(call);
  CallScope::refuse_in_step(call, "no state is at rest: call it when run() has returned");
  if (!StrategyAccess::group(strategy).running()) return;
  throw UsageError("LS-NESTED-CALL",
                   fmt::format("{} was called inside merge_call: the step that it is in has changed some of the "
                               "state, and not yet the rest",
                               call),
                   "call it when run() has returned");
}

std::shared_ptr<void> reading(const Strategy& strategy) {
  ServedState* const served = served_state_of(strategy);
  return served == nullptr ? nullptr : served->reading();
}

void Home::require_here(const char* call) const {
  if (!mark_.is_in_child()) return;
  throw UsageError("LS-FORKED",
                   fmt::format("{} was called in process {}, a child that was forked from process {} after the "
                               "checkpoint's object was made: the threads of its strategy, and of its saves, exist in "
                               "process {} only",
                               call, getpid(), process_, process_),
                   "make a strategy and its checkpoints in the child, or let the child exec a program");
}

Home::Home() : process_(getpid()) {}

std::map<std::string, std::string> other_names_of(const Strategy& strategy) {
  std::map<std::string, std::string> names;
  for (const auto& module : StrategyAccess::registry(strategy).modules()) names.merge(module->other_names());
  return names;
}

void note_compute_settings(const Strategy& strategy, RunRecord& run) {
  const ComputeSettings& compute = StrategyAccess::group(strategy).plan().compute;
  run.threads_per_replica = compute.threads;
  run.denormals = compute.denormals == Denormals::kFlush ? "flushed" : "kept";
}

namespace {

/// The state as it is now. With `view` values may change when this has returned, and places of data sets are those of
/// the cut.
Image captured(const Strategy& strategy, const Tracked& tracked, const ServedView* view) {
  const bool goes_on = view != nullptr && view->goes_on;
  const auto kept = [&](const at::Tensor& value) { return goes_on ? value.clone() : value; };
  const auto cursor_of_data = [&](const DistributedDataset& data) {
    const auto at_cut = view == nullptr ? std::nullopt : view->cursor_of(data);
    return at_cut ? *at_cut : data.cursor();
  };
  const auto named = StrategyAccess::named_data_sets(strategy);
  Image image;
  image.run = {.library = LOCKSTEP_VERSION,
               .platform = platform_description(),
               .fingerprint = fingerprint_of(strategy),
               .strategy = strategy.name(),
               .replicas = strategy.num_replicas(),
               .workers = strategy.num_workers(),
               .step = strategy.step(),
               .other_names = other_names_of(strategy)};
  note_compute_settings(strategy, image.run);
  const std::map<std::string, at::Tensor> sliced = sliced_slots(strategy);
  std::vector<Replicas> of_replicas;
  all_or_none(strategy, "Checkpoint::save", [&] {
    check_memory(strategy);
    look_for_gradients(strategy);
    std::map<std::string, VariableAggregation> aggregations;
    for (const Variable& one : strategy.variables()) aggregations[one.name()] = one.aggregation();
    for (const StateItem& item : strategy.state_items()) {
      if (item.made_with && item.read().front().item<double>() == *item.made_with) continue;
      if (item.is_of_torch) continue;
      if (item.per_replica) {
        const bool is_variable = item.kind == Kind::kOnRead;
        of_replicas.push_back({image.tensors.size(), kind_text(item.kind), item.name,
                               is_variable ? aggregation_text(aggregations.at(item.name)) : "", item.view()});
        for (at::Tensor& one : of_replicas.back().mine) one = kept(one);
      } else if (is_tensor(item.kind)) {
        const auto slot = item.kind == Kind::kSlot ? sliced.find(item.name) : sliced.end();
        const at::Tensor value = kept(slot == sliced.end() ? item.view().front() : slot->second);
        image.tensors.push_back({kind_text(item.kind), item.name, -1, value, !goes_on});
      } else if (item.kind == Kind::kCursor && view != nullptr && named.contains(item.name)) {
        image.run.numbers.push_back(numbers_of(item, cursor_value(cursor_of_data(named.at(item.name)))));
      } else {
        image.run.numbers.push_back(numbers_of(item, item.read().front()));
      }
    }
    for (const auto& [name, data] : tracked.data) image.run.data[name] = to_json(cursor_of_data(data));
    for (const auto& [name, value] : tracked.values) image.run.values[name] = checked_json(name, value.save());
  });
  if (!of_replicas.empty()) add_replicas(image, strategy, of_replicas);
  if (const auto waiting = waiting_names(strategy); !waiting.empty() && strategy.is_chief()) {
    log(LogLevel::kWarning,
        fmt::format("a checkpoint is saved without {} values that the one before it has and that wait for what is made "
                    "later, such as '{}'",
                    waiting.size(), shown(waiting.front())));
  }
  return image;
}

}  // namespace

Image take_image(const Strategy& strategy, const Tracked& tracked) {
  require_at_rest(strategy, tracked, "Checkpoint::save");
  ServedState* const served = served_state_of(strategy);
  if (served == nullptr) return captured(strategy, tracked, nullptr);
  Image image;
  ServedCut cut = served->cut([&](const ServedView& view) { image = captured(strategy, tracked, &view); });
  image.run.scheduled = std::move(cut.steps);
  for (ServedTable& table : cut.tables) {
    image.run.tables[table.name] = std::move(table.record);
    for (ServedTensor& one : table.tensors) image.rows.push_back(std::move(one));
  }
  return image;
}

}  // namespace lockstep::internal::checkpoint
