// From a checkpoint in memory to the run. Everything is compared first. Then what may fail is carried out, and taken
// back where some of it does. Variables with one value come last: nothing can fail then, so their old values need not
// be kept. Only where the program has load functions of its own, these come last, and the old values are kept.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/capture.h"
#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/formats/tied_names.h"
#include "lockstep/checkpoint/late_values.h"
#include "lockstep/checkpoint/restored_slices.h"
#include "lockstep/checkpoint/saved_values.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/pool/cores.h"
#include "lockstep/strategy/served_state.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline checkpoint {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

namespace {

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
  MirroredState* shared = nullptr;  // the item's variable, where all replicas share its value and it is written last
};

/// All that a restore will do, and what is wrong with it.
struct RestorePlan {
  std::vector<Write> writes;
  std::vector<std::pair<DistributedDataset, lockstep::data::Cursor>> seeks;
  std::vector<std::pair<const Tracked::Value*, std::string>> loads;
  std::vector<std::pair<std::string, StagedTable*>> tables;  // by name
  Names missing, unexpected, misfits, idle_patterns;
  Late late;  // the values of `unexpected`
};

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

void warn(const Image& image, const Strategy& strategy, const std::string& what) {
  if (!strategy.is_chief()) return;
  const std::string fingerprint = fingerprint_of(strategy);
  if (image.run.fingerprint != fingerprint) {
    log(LogLevel::kWarning,
        fmt::format("{} was saved under {} (fingerprint {}), and this process has {} (fingerprint {}): the run goes on "
                    "with values that may differ in their last bits from those that it would have had there",
                    what, shown(image.run.platform), shown(image.run.fingerprint), platform_description(),
                    fingerprint));
  }
  if (image.run.replicas != strategy.num_replicas()) {
    log(LogLevel::kWarning,
        fmt::format("{} is of {} and was restored on {}: random numbers and the order of additions are others "
                    "from now on, and replicas' own values were dealt anew",
                    what, counted(image.run.replicas, "replica"), strategy.num_replicas()));
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

namespace {

/// Lets all variables that are written last say whether they can be: then write_shared() has nothing left that can
/// fail, but for a process without any memory.
void prepare_shared(const std::vector<Write>& writes) {
  for (const Write& one : writes) {
    if (one.shared == nullptr) continue;
    one.shared->require_own_value("a restore");
    one.shared->leave_halves();  // takes the memory that it needs, and changes no value
  }
}

/// Writes them, on all cores.
void write_shared(const std::vector<Write>& writes, const RestoredSlices& slices) {
  ReadPool pool(static_cast<int64_t>(cores_of_this_process().size()));
  pool.run(static_cast<int64_t>(writes.size()), [&](int64_t i) {
    const Write& one = writes[static_cast<std::size_t>(i)];
    if (one.shared != nullptr && !slices.write(one.item, one.values.front())) one.item.write(one.values);
  });
}

/// The averages and slots that were not written although their variables were: they belong to the old values. Slots of
/// an optimizer that has not updated the variable yet are as they should be.
Names left_old(const Strategy& strategy, const std::vector<Write>& writes) {
  std::set<std::string> written;
  for (const Write& one : writes) written.insert(one.item.name);
  Names old;
  for (const Variable& one : strategy.variables()) {
    if (!written.contains(one.name())) continue;
    for (std::string& name : StrategyAccess::registry(strategy).derived()->made_from(one.state())) {
      if (!written.contains(name)) old.push_back(std::move(name));
    }
  }
  const std::vector<StateItem> items = strategy.state_items();
  std::map<std::string, int64_t> updates;  // by "<variable>" or "<variable>/<optimizer>"
  for (const StateItem& item : items) {
    if (item.kind != StateItem::Kind::kStepCount) continue;
    updates[item.name.substr(0, item.name.rfind('/'))] = item.read().front().item<int64_t>();
  }
  for (const StateItem& item : items) {
    if (item.kind != StateItem::Kind::kSlot || written.contains(item.name)) continue;
    const std::string whose = item.name.substr(0, item.name.rfind('/'));
    const auto count = updates.find(whose);
    const bool is_used = count == updates.end() || count->second > 0;
    if (is_used && (written.contains(whose) || written.contains(whose.substr(0, whose.rfind('/'))))) {
      old.push_back(item.name);
    }
  }
  return old;
}

void warn_of_old(const Strategy& strategy, const Names& old, const std::string& what) {
  if (old.empty() || !strategy.is_chief()) return;
  std::string text;
  add_names(text, "averages and slots", old);
  log(LogLevel::kWarning, fmt::format("{} has set variables and not what was made from their old values: {}; restore "
                                      "these too, or make them anew",
                                      what, text));
}

/// Drops the gradients of the variables that were written: they belong to the old values.
void drop_gradients(const Strategy& strategy, const std::vector<Write>& writes) {
  std::set<std::string> written;
  for (const Write& one : writes) written.insert(one.item.name);
  for (const Variable& one : strategy.variables()) {
    if (written.contains(one.name())) one.state().drop_gradients();
  }
}

}  // namespace

RestoreInfo apply(const Image& image, const Strategy& strategy, const Tracked& tracked, const RestoredSlices& slices,
                  const RestoreOptions& options, const std::string& what) {
  RestorePlan plan;
  all_or_none(strategy, "Checkpoint::restore", [&] {
    Planner planner(image, strategy, options);
    planner.add_items(plan);
    planner.add_tables(plan);
    planner.add_tracked(plan, tracked, what);
    planner.add_idle_patterns(plan, tracked);
    check(plan, image, strategy, options, what);
  });
  // What a failure puts back is the value of all of a slot.
  if (slices.needs_whole_slots()) StrategyAccess::gather_slots(strategy);
  if (!plan.loads.empty()) {  // a load function may read the variables, and may fail: so they come before it
    for (Write& one : plan.writes) one.shared = nullptr;
  }
  std::vector<std::function<void()>> undo;
  try {
    all_or_none(strategy, "Checkpoint::restore", [&] {
      for (const auto& [item, values, shared] : plan.writes) {
        if (shared != nullptr) continue;
        Tensors before = item.read();
        item.write(values);  // where it throws, it has changed nothing
        undo.emplace_back([&write = item.write, before = std::move(before)] { write(before); });
      }
      for (const auto& [set, cursor] : plan.seeks) {
        const lockstep::data::Cursor before = set.cursor();
        set.seek(cursor);
        undo.emplace_back([set = set, before] { set.seek(before); });
      }
      for (const auto& [value, text] : plan.loads) {
        undo.emplace_back([value = value, before = value->save()] { value->load(before); });
        value->load(text);
      }
      prepare_shared(plan.writes);
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
  write_shared(plan.writes, slices);
  if (ServedState* const served = served_state_of(strategy)) {
    for (const auto& [name, rows] : plan.tables) served->take(name, image.run.tables.at(name), *rows);
    if (is_wanted(options.only, "step")) served->take_steps(image.run.scheduled);
  }
  drop_gradients(strategy, plan.writes);
  // A restore before this one has nothing to give any more.
  wait_for_later(strategy, options.restore_on_create ? std::move(plan.late) : Late(), what);
  warn(image, strategy, what);
  Names old = left_old(strategy, plan.writes);
  warn_of_old(strategy, old, what);
  return {.step = image.run.step,
          .missing = std::move(plan.missing),
          .unexpected = std::move(plan.unexpected),
          .left_old = std::move(old)};
}

}  // namespace lockstep::internal::checkpoint
