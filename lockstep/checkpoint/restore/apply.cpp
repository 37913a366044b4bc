// Carries out the restore of a checkpoint. A plan is made first, which compares everything. Then what may fail is
// carried out, and taken back where some of it does. Variables with one value come last: nothing can fail then, so
// their old values need not be kept. Only where the program has load functions of its own, these come last, and the old
// values are kept.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/late_values.h"
#include "lockstep/checkpoint/restore/restore_plan.h"
#include "lockstep/checkpoint/restore/restored_slices.h"
#include "lockstep/checkpoint/take_image.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/log.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/replica/pool/cores.h"
#include "lockstep/strategy/served_state.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline checkpoint {

namespace {

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
  RunRecord here;
  note_compute_settings(strategy, here);
  if (image.run.threads_per_replica > 0 && std::tie(image.run.threads_per_replica, image.run.denormals) !=
                                               std::tie(here.threads_per_replica, here.denormals)) {
    log(LogLevel::kWarning,
        fmt::format("{} was saved with .threads_per_replica = {} and denormal numbers {}, and this strategy has {} and "
                    "{}: values may differ in their last bits from those of the run that never stopped; give the "
                    "strategy the same",
                    what, image.run.threads_per_replica, shown(image.run.denormals), here.threads_per_replica,
                    here.denormals));
  }
  if (image.run.replicas != strategy.num_replicas()) {
    log(LogLevel::kWarning,
        fmt::format("{} is of {} and was restored on {}: random numbers and the order of additions are others "
                    "from now on, and replicas' own values were dealt anew",
                    what, counted(image.run.replicas, "replica"), strategy.num_replicas()));
  }
}

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
std::vector<std::string> left_old(const Strategy& strategy, const std::vector<Write>& writes) {
  std::set<std::string> written;
  for (const Write& one : writes) written.insert(one.item.name);
  std::vector<std::string> old;
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

void warn_of_old(const Strategy& strategy, const std::vector<std::string>& old, const std::string& what) {
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
  all_or_none(strategy, "Checkpoint::restore", [&] { plan = plan_restore(image, strategy, tracked, options, what); });
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
        std::vector<at::Tensor> before = item.read();
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
  std::vector<std::string> old = left_old(strategy, plan.writes);
  warn_of_old(strategy, old, what);
  return {.step = image.run.step,
          .missing = std::move(plan.missing),
          .unexpected = std::move(plan.unexpected),
          .left_old = std::move(old)};
}

}  // namespace lockstep::internal::checkpoint
