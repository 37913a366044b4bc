// The order of events: each of the run's items, tables and tracked values looks for its own in the checkpoint; what is
// left there is unexpected; then all that does not fit is told at once.
#include "lockstep/checkpoint/restore/restore_plan.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/formats/tied_names.h"
#include "lockstep/checkpoint/saved_values.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline checkpoint {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

void add_names(std::string& text, const char* what, const Names& names) {
  constexpr std::size_t kShown = 20;
  if (names.empty()) return;
  Names shown_names;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) shown_names.push_back(shown(names[i]));
  text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", names.size(), what, fmt::join(shown_names, ", "));
  if (names.size() > kShown) text += ", ...";
}

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

namespace {

class Planner {
 public:
  Planner(const Image& image, const Strategy& strategy, const RestoreOptions& options)
      : image_(image), strategy_(strategy), options_(options), saved_(saved_of(image)) {
    for (const Variable& one : strategy.variables()) variables_.emplace(one.name(), one);
    tied_.add(other_names_of(strategy));
    tied_.add(image.run.other_names);
  }

  void add_items(RestorePlan& plan) {
    std::set<KindAndName> here;
    for (StateItem& item : strategy_.state_items()) {
      const std::vector<std::string> names = tied_.all(item.name);
      for (const std::string& name : names) here.emplace(kind_text(item.kind), name);
      if (!tied_.are_wanted(options_.only, item.name)) continue;
      const auto found = saved_under(names, item.kind, plan);
      if (item.kind == StateItem::Kind::kRule) {
        add_rule(item, found, plan);
        continue;
      }
      if (found == saved_.end()) {
        if (!item.made_with) {
          plan.missing.push_back(item.name);
        } else if (saved_.contains({kind_text(StateItem::Kind::kLearningRate), learning_rate_beside(item.name)})) {
          plan.writes.push_back({item, {at::scalar_tensor(*item.made_with, at::kDouble)}});
        }  // else the checkpoint does not know the optimizer, whose learning rate is missing too
        continue;
      }
      const auto variable = variables_.find(item.name);
      Tensors values =
          values_here(found->second, item.per_replica, strategy_,
                      variable == variables_.end() ? VariableAggregation::kMean : variable->second.aggregation());
      const std::string misfit = misfit_of(item, found->second, values);
      if (misfit.empty()) {
        const bool is_shared = item.view && !item.per_replica && values.size() == 1 && variable != variables_.end();
        plan.writes.push_back(
            {std::move(item), std::move(values), is_shared ? &variable->second.state().as_mirrored() : nullptr});
      } else {
        plan.misfits.push_back(misfit);
      }
    }
    for (auto& [key, value] : saved_) {
      if (here.contains(key) || !tied_.are_wanted(options_.only, key.second)) continue;
      plan.unexpected.push_back(key.second);
      plan.late.items.emplace(key, std::move(value));
    }
  }

  /// Rows never wait for a table that is made later, because they would take its memory until then.
  void add_tables(RestorePlan& plan) const {
    const ServedState* const served = served_state_of(strategy_);
    if (served != nullptr) served->check_steps(image_.run.scheduled);
    const Names here = served == nullptr ? Names() : served->tables();
    for (const std::string& name : here) {
      if (!is_wanted(options_.only, name)) continue;
      const auto found = image_.read_tables.find(name);
      if (found == image_.read_tables.end()) {
        plan.missing.push_back(name);
      } else if (!found->second.misfit.empty()) {
        plan.misfits.push_back(found->second.misfit);
      } else {
        plan.tables.emplace_back(name, found->second.rows.get());
      }
    }
    for (const auto& [name, record] : image_.run.tables) {
      if (std::ranges::find(here, name) != here.end() || !is_wanted(options_.only, name)) continue;
      plan.unexpected.push_back(name);
      if (!options_.restore_on_create) continue;
      plan.misfits.push_back(fmt::format("table '{}' must be made before the checkpoint is restored", shown(name)));
    }
  }

  /// A pattern that nothing has is a mistake in writing, which must not look like a restore.
  void add_idle_patterns(RestorePlan& plan, const Tracked& tracked) const {
    std::set<std::string> names;
    for (const StateItem& item : strategy_.state_items()) names.insert(item.name);
    for (const auto& [key, value] : saved_) names.insert(key.second);
    for (const std::string& name : std::set(names)) {
      for (std::string& other : tied_.all(name)) names.insert(std::move(other));
    }
    for (const auto* const texts : {&image_.run.data, &image_.run.values}) {
      for (const auto& [name, text] : *texts) names.insert(name);
    }
    for (const auto& [name, record] : image_.run.tables) names.insert(name);
    if (const ServedState* const served = served_state_of(strategy_)) names.merge(names_of(served->tables()));
    for (const auto& [name, data] : tracked.data) names.insert(name);
    for (const auto& [name, value] : tracked.values) names.insert(name);
    for (const std::string& pattern : options_.only) {
      const bool fits =
          std::any_of(names.begin(), names.end(), [&](const std::string& name) { return is_wanted({pattern}, name); });
      if (!fits) plan.idle_patterns.push_back(pattern);
    }
  }

  void add_tracked(RestorePlan& plan, const Tracked& tracked, const std::string& what) const {
    const auto match = [&](const auto& here, const std::map<std::string, std::string>& saved,
                           std::map<std::string, std::string>& late, const auto& use) {
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
        if (here.contains(name) || !is_wanted(options_.only, name)) continue;
        plan.unexpected.push_back(name);
        late.emplace(name, text);
      }
    };
    match(tracked.data, image_.run.data, plan.late.data,
          [&](const std::string& name, const auto& data, const std::string& text) {
            plan.seeks.emplace_back(data, cursor_of(text, fmt::format("{}: the cursor '{}'", what, shown(name))));
          });
    match(
        tracked.values, image_.run.values, plan.late.values,
        [&](const std::string&, const auto& value, const std::string& text) { plan.loads.emplace_back(&value, text); });
  }

 private:
  using SavedItems = std::map<KindAndName, Saved>;

  static std::set<std::string> names_of(const Names& names) { return {names.begin(), names.end()}; }

  /// The name of the learning rate of the group that has the option `name`: "<optimizer>/<option>/<group>".
  static std::string learning_rate_beside(const std::string& name) {
    const std::size_t group = name.rfind('/');
    return name.substr(0, name.rfind('/', group - 1)) + "/learning_rate" + name.substr(group);
  }

  /// A rule is not restored, but must be the one of the checkpoint. This has no names of torch::optim's.
  void add_rule(const StateItem& item, const SavedItems::iterator& found, RestorePlan& plan) const {
    const bool knows_optimizer =
        saved_.contains({kind_text(StateItem::Kind::kLearningRate), learning_rate_beside(item.name)});
    if (found == saved_.end() && (item.is_of_torch || !knows_optimizer)) return;
    const std::string here = text_of(item.read().front());
    const std::string saved =
        found == saved_.end() ? "a rule of torch::optim" : fmt::format("'{}'", text_of(found->second.values.front()));
    if (saved == fmt::format("'{}'", here) && !item.is_of_torch) return;
    plan.misfits.push_back(fmt::format("'{}' is {} in the checkpoint, and '{}' here", shown(item.name), saved, here));
  }
  static std::string text_of(const at::Tensor& bytes) {
    const at::Tensor numbers = bytes.contiguous();
    const std::span<const int64_t> all = host_numbers<int64_t>(numbers);
    return {all.begin(), all.end()};
  }

  /// What the checkpoint has of an item under any of its names. Where it has several values of one tensor, they must be
  /// equal; of slots, which differ wherever weights were not tied, the first name's count.
  SavedItems::iterator saved_under(const std::vector<std::string>& names, StateItem::Kind kind, RestorePlan& plan) {
    auto first = saved_.end();
    for (const std::string& name : names) {
      const auto found = saved_.find({kind_text(kind), name});
      if (found == saved_.end() || found->second.values.empty()) continue;
      if (first == saved_.end()) {
        first = found;
      } else if (kind == StateItem::Kind::kMirrored && !same_bits(first->second.values[0], found->second.values[0])) {
        plan.misfits.push_back(fmt::format("'{}' and '{}' are names of one tensor, and have different values in it",
                                           shown(first->first.second), shown(name)));
      }
    }
    return first;
  }

  std::string misfit_of(const StateItem& item, const Saved& saved, const Tensors& values) const {
    const auto variable = variables_.find(item.name);
    std::string misfit = misfit_text(item, saved, values, variable == variables_.end() ? nullptr : &variable->second);
    if (!misfit.empty() || item.kind != StateItem::Kind::kNumber || item.name != "seed") return misfit;
    const auto saved_seed = static_cast<uint64_t>(values.front().item<int64_t>());
    if (saved_seed == strategy_.seed()) return {};
    return fmt::format("the seed is {} in the checkpoint, and {} here", saved_seed, strategy_.seed());
  }

  const Image& image_;
  const Strategy& strategy_;
  const RestoreOptions& options_;
  std::map<KindAndName, Saved> saved_;
  std::map<std::string, Variable> variables_;
  TiedNames tied_;
};

void check(RestorePlan& plan, const Image& image, const Strategy& strategy, const RestoreOptions& options,
           const std::string& what) {
  const int64_t saved = image.run.replicas;
  const int64_t here = strategy.num_replicas();
  std::string text;
  if (!options.allow_missing) add_names(text, "missing in it", plan.missing);
  if (!options.allow_unexpected && !options.restore_on_create) add_names(text, "unexpected", plan.unexpected);
  add_names(text, "that do not fit", plan.misfits);
  add_names(text, "of the patterns in .only that fit no name, here or there", plan.idle_patterns);
  if (saved != here && !options.allow_other_replicas && options.only.empty()) {
    text += fmt::format(
        "{}it is of {}, and this run has {}: the run would go on with other random numbers and another order of "
        "additions",
        text.empty() ? "" : "; ", counted(saved, "replica"), here);
  }
  if (text.empty()) return;
  throw UsageError(
      "LS-CHECKPOINT-MISFIT", fmt::format("{} does not fit this program: {}", what, text),
      "make what the checkpoint was made of, correct the patterns, or choose RestoreOptions: allow_missing, "
      "allow_unexpected, allow_other_replicas, restore_on_create, only");
}

}  // namespace

RestorePlan plan_restore(const Image& image, const Strategy& strategy, const Tracked& tracked,
                         const RestoreOptions& options, const std::string& what) {
  RestorePlan plan;
  Planner planner(image, strategy, options);
  planner.add_items(plan);
  planner.add_tables(plan);
  planner.add_tracked(plan, tracked, what);
  planner.add_idle_patterns(plan, tracked);
  check(plan, image, strategy, options, what);
  return plan;
}

}  // namespace lockstep::internal::checkpoint
