// From a checkpoint in memory to the run: everything is compared first, and what was written is taken back where
// something fails.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/capture.h"
#include "lockstep/checkpoint/strict_json.h"
#include "lockstep/checkpoint/together.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/log.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;
using KindAndName = std::pair<std::string, std::string>;

namespace {

/// Dtype and shape of a tensor.
std::string form_of(const at::Tensor& value) { return shape_text(value); }

/// The values of an item in the image, by replica where it has several.
struct Saved {
  Tensors values;
  bool per_replica = false;
};

std::map<KindAndName, Saved> saved_of(const Image& image) {
  std::map<KindAndName, Saved> saved;
  for (const ImageTensor& one : image.tensors) {
    Saved& item = saved[{one.kind, one.name}];
    item.per_replica = one.replica >= 0;
    item.values.push_back(one.value);
  }
  for (const RecordedNumbers& one : image.run.numbers) {
    const bool is_list = one.kind == kind_text(StateItem::Kind::kCursor);
    at::Tensor value;
    if (one.real) {
      value = at::scalar_tensor(*one.real, at::kDouble);
    } else if (is_list || one.integers.size() != 1) {
      value = at::tensor(one.integers, at::kLong);
    } else {
      value = at::scalar_tensor(one.integers.front(), at::kLong);
    }
    saved[{one.kind, one.name}] = {{value}, false};
  }
  return saved;
}

/// The components of other replicas than those that were saved: see RestoreOptions::allow_other_replicas.
Tensors dealt_anew(const Tensors& saved, int64_t replicas, VariableAggregation aggregation) {
  const at::NoGradGuard no_grad;
  const at::Tensor& first = saved.front();
  bool alike = true;
  bool one_shape = true;
  for (const at::Tensor& one : saved) {
    alike = alike && same_bits(one, first);
    one_shape = one_shape && one.sizes() == first.sizes() && one.scalar_type() == first.scalar_type();
  }
  at::Tensor whole = first;
  const bool adds = aggregation == VariableAggregation::kMean || aggregation == VariableAggregation::kSum;
  const bool is_sum = aggregation == VariableAggregation::kSum;
  if (adds && one_shape && (is_sum || !alike) && (first.is_floating_point() || is_sum)) {
    const at::ScalarType wide = first.is_floating_point() ? at::kDouble
                                : first.is_complex()      ? at::kComplexDouble
                                                          : at::kLong;
    at::Tensor sum = at::zeros(first.sizes(), wide);
    for (const at::Tensor& one : saved) sum += one.to(wide);
    whole = (is_sum ? sum : sum / static_cast<double>(saved.size())).to(first.scalar_type());
  }
  Tensors dealt;
  for (int64_t r = 0; r < replicas; ++r) dealt.push_back(is_sum && r > 0 ? at::zeros_like(whole) : whole.clone());
  return dealt;
}

/// "3 missing: a, b, c".
void add_names(std::string& text, const char* what, const Names& names) {
  constexpr std::size_t kShown = 20;
  if (names.empty()) return;
  Names shown_names;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) shown_names.push_back(shown(names[i]));
  text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", names.size(), what, fmt::join(shown_names, ", "));
  if (names.size() > kShown) text += ", ...";
}

/// What is to be written into one item.
struct Write {
  StateItem item;
  Tensors values;
};

/// All that a restore will do, and what is wrong with it.
struct RestorePlan {
  std::vector<Write> writes;
  std::vector<std::pair<DistributedDataset, data::Cursor>> seeks;
  std::vector<std::pair<const Tracked::Value*, std::string>> loads;
  Names missing, unexpected, misfits;
};

class Planner {
 public:
  Planner(const Image& image, const Strategy& strategy, const RestoreOptions& options)
      : image_(image), strategy_(strategy), options_(options), saved_(saved_of(image)) {
    for (const Variable& one : strategy.variables()) variables_.emplace(one.name(), one);
  }

  void add_items(RestorePlan& plan) {
    std::set<KindAndName> here;
    for (StateItem& item : strategy_.state_items()) {
      const KindAndName key{kind_text(item.kind), item.name};
      here.insert(key);
      if (!is_wanted(options_.only, item.name)) continue;
      const auto found = saved_.find(key);
      if (found == saved_.end()) {
        plan.missing.push_back(item.name);
        continue;
      }
      Tensors values = values_for(item, found->second);
      const std::string misfit = misfit_of(item, values);
      if (misfit.empty()) {
        plan.writes.push_back({std::move(item), std::move(values)});
      } else {
        plan.misfits.push_back(misfit);
      }
    }
    for (const auto& [key, value] : saved_) {
      if (!here.contains(key) && is_wanted(options_.only, key.second)) plan.unexpected.push_back(key.second);
    }
  }

  void add_tracked(RestorePlan& plan, const Tracked& tracked, const std::string& what) const {
    const auto match = [&](const auto& here, const std::map<std::string, std::string>& saved, const auto& use) {
      for (const auto& [name, one] : here) {
        if (!is_wanted(options_.only, name)) continue;
        const auto found = saved.find(name);
        if (found == saved.end()) {
          plan.missing.push_back(name);
        } else {
          use(name, one, found->second);
        }
      }
      for (const auto& [name, text] : saved) {
        if (!here.contains(name) && is_wanted(options_.only, name)) plan.unexpected.push_back(name);
      }
    };
    match(tracked.data, image_.run.data, [&](const std::string& name, const auto& data, const std::string& text) {
      plan.seeks.emplace_back(data, cursor_of(text, fmt::format("{}: the cursor '{}'", what, shown(name))));
    });
    match(tracked.values, image_.run.values, [&](const std::string&, const auto& value, const std::string& text) {
      plan.loads.emplace_back(&value, text);
    });
  }

 private:
  /// The saved values that are for this process.
  Tensors values_for(const StateItem& item, const Saved& saved) const {
    if (!item.per_replica || !saved.per_replica) return saved.values;
    const int64_t replicas = strategy_.num_replicas();
    Tensors all = saved.values;
    if (static_cast<int64_t>(all.size()) != replicas) {
      const auto variable = variables_.find(item.name);
      all = dealt_anew(all, replicas,
                       variable == variables_.end() ? VariableAggregation::kMean : variable->second.aggregation());
    }
    Tensors mine;
    strategy_.per_replica([&](ReplicaId r) {
      mine.push_back(all[static_cast<std::size_t>(r.value())]);
      return 0;
    });
    return mine;
  }

  std::string misfit_of(const StateItem& item, const Tensors& values) const {
    const bool one_for_each = saved_.at({kind_text(item.kind), item.name}).per_replica;
    if (one_for_each != item.per_replica) {
      return fmt::format("'{}' has {} in the checkpoint, and {} here", shown(item.name),
                         one_for_each ? "a value of each replica" : "one value",
                         item.per_replica ? "a value of each replica" : "one value");
    }
    if (item.kind == StateItem::Kind::kCursor) return {};  // how many numbers it has depends on the place
    std::string expected;
    if (const auto variable = variables_.find(item.name); variable != variables_.end() && is_variable(item)) {
      expected =
          fmt::format("{} [{}]", dtype_name(variable->second.dtype()), fmt::join(variable->second.sizes(), ", "));
    } else {
      expected = form_of(item.read().front());
    }
    for (const at::Tensor& value : values) {
      if (form_of(value) == expected) continue;
      return fmt::format("'{}' is {} in the checkpoint, and {} here", shown(item.name), form_of(value), expected);
    }
    if (item.kind == StateItem::Kind::kNumber && item.name == "seed") {
      const auto saved_seed = static_cast<uint64_t>(values.front().item<int64_t>());
      if (saved_seed != strategy_.seed())
        return fmt::format("the seed is {} in the checkpoint, and {} here", saved_seed, strategy_.seed());
    }
    return {};
  }

  static bool is_variable(const StateItem& item) {
    return item.kind == StateItem::Kind::kMirrored || item.kind == StateItem::Kind::kOnRead ||
           item.kind == StateItem::Kind::kSlot;
  }

  const Image& image_;
  const Strategy& strategy_;
  const RestoreOptions& options_;
  const std::map<KindAndName, Saved> saved_;
  std::map<std::string, Variable> variables_;
};

void check(RestorePlan& plan, const Image& image, const Strategy& strategy, const RestoreOptions& options,
           const std::string& what) {
  const int64_t saved = image.run.replicas;
  const int64_t here = strategy.num_replicas();
  std::string text;
  if (!options.allow_missing) add_names(text, "missing in it", plan.missing);
  if (!options.allow_unexpected) add_names(text, "unexpected", plan.unexpected);
  add_names(text, "that do not fit", plan.misfits);
  if (saved != here && !options.allow_other_replicas && options.only.empty()) {
    text += fmt::format(
        "{}it is of {} replicas, and here are {}: the run would go on with other random numbers and another order of "
        "additions",
        text.empty() ? "" : "; ", saved, here);
  }
  if (text.empty()) return;
  throw UsageError("LS-CHECKPOINT-MISFIT", fmt::format("{} does not fit this program: {}", what, text),
                   "make what the checkpoint was made of, or choose RestoreOptions: allow_missing, allow_unexpected, "
                   "allow_other_replicas, only");
}

void warn(const Image& image, const Strategy& strategy, const std::string& what) {
  if (!strategy.is_chief()) return;
  if (image.run.fingerprint != platform_fingerprint()) {
    log(LogLevel::kWarning,
        fmt::format("{} was saved under {} (fingerprint {}), and this process has {} (fingerprint {}): the run goes on "
                    "with values that may differ in their last bits from those that it would have had there",
                    what, shown(image.run.platform), shown(image.run.fingerprint), platform_description(),
                    platform_fingerprint()));
  }
  if (image.run.replicas != strategy.num_replicas()) {
    log(LogLevel::kWarning,
        fmt::format("{} is of {} replicas and was restored on {}: random numbers and the order of additions are others "
                    "from now on, and replicas' own values were dealt anew",
                    what, image.run.replicas, strategy.num_replicas()));
  }
}

}  // namespace

bool is_wanted(const std::vector<std::string>& patterns, const std::string& name) {
  if (patterns.empty()) return true;
  for (const std::string& pattern : patterns) {
    // Goes back to the last star where a character does not fit.
    std::size_t p = 0;
    std::size_t n = 0;
    std::size_t star = std::string::npos;
    std::size_t after = 0;
    while (n < name.size()) {
      if (p < pattern.size() && pattern[p] == '*') {
        star = p++;
        after = n;
      } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
        ++p;
        ++n;
      } else if (star != std::string::npos) {
        p = star + 1;
        n = ++after;
      } else {
        break;
      }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    if (n == name.size() && p == pattern.size()) return true;
  }
  return false;
}

RestoreInfo apply(const Image& image, const Strategy& strategy, const Tracked& tracked, const RestoreOptions& options,
                  const std::string& what) {
  RestorePlan plan;
  all_or_none(strategy, "Checkpoint::restore", [&] {
    Planner planner(image, strategy, options);
    planner.add_items(plan);
    planner.add_tracked(plan, tracked, what);
    check(plan, image, strategy, options, what);
  });
  std::vector<std::function<void()>> undo;
  try {
    all_or_none(strategy, "Checkpoint::restore", [&] {
      for (const auto& [item, values] : plan.writes) {
        Tensors before = item.read();
        item.write(values);  // where it throws, it has changed nothing
        undo.emplace_back([&write = item.write, before = std::move(before)] { write(before); });
      }
      for (const auto& [set, cursor] : plan.seeks) {
        const data::Cursor before = set.cursor();
        set.seek(cursor);
        undo.emplace_back([set = set, before] { set.seek(before); });
      }
      for (const auto& [value, text] : plan.loads) {
        undo.emplace_back([value = value, before = value->save()] { value->load(before); });
        value->load(text);
      }
    });
  } catch (...) {
    for (auto one = undo.rbegin(); one != undo.rend(); ++one) {
      try {
        (*one)();
      } catch (const std::exception& error) {
        log(LogLevel::kError, fmt::format("a value could not be put back after a failed restore: {}", error.what()));
      }
    }
    throw;
  }
  warn(image, strategy, what);
  return {.step = image.run.step, .missing = std::move(plan.missing), .unexpected = std::move(plan.unexpected)};
}

}  // namespace lockstep::internal
