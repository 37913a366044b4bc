#include "lockstep/server/coordinator_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/take_image.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/option_checks.h"
#include "lockstep/server/table/cut_tensors.h"

namespace lockstep::internal::inline server {

namespace {

using checkpoint::array_in;
using checkpoint::integer_in;
using checkpoint::parse_object;
using checkpoint::shown;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kDepth = 6;  // of what is written here
/// How far above the floor a step can be decided: no more steps wait at a time.
constexpr int64_t kMostAbove = 4'000'000;
/// Parts of evaluations have numbers far above.
constexpr int64_t kMostSteps = int64_t{1} << 60;

/// What has to be equal for rows to go on as they would have: by the words of a message.
std::vector<std::pair<const char*, std::string>> identity_of(const TableState& state, uint64_t seed) {
  const EmbeddingOptions& options = state.table.options();
  const RowFormat format = state.table.format();
  std::string slots = fmt::format("{}", fmt::join(format.slots, ", "));
  if (format.has_updates) slots += slots.empty() ? "counts of updates" : " and counts of updates";
  return {{"dim", std::to_string(options.dim)},
          {"dtype", c10::toString(options.dtype)},
          {"seed", std::to_string(seed)},
          {"initial", text_of(options.initial)},
          {"rule", state.rule ? state.rule->name() : "none"},
          {"slots", slots}};
}

std::string record_of(const TableState& state, uint64_t seed) {
  ordered_json record;
  for (const auto& [what, value] : identity_of(state, seed)) record[what] = value;
  record["rows"] = state.table.options().rows;
  record["kept"] = state.table.size();
  if (state.rule) record["learning_rate"] = state.rule->learning_rate();
  record["evicted_at"] = state.evicted_at;
  return record.dump();
}

std::string text_of(const RunBegin& begin, int64_t workers) {
  ordered_json streams = ordered_json::array();
  for (const StreamPlace& one : begin.streams)
    streams.push_back({{"stream", one.stream}, {"worker", one.worker}, {"position", one.position}});
  ordered_json data = ordered_json::array();
  for (const UsedData& one : begin.data) data.push_back(ordered_json::parse(to_json(one.place)));
  return ordered_json{{"counted", begin.chief.counted},
                      {"floor", begin.chief.floor},
                      {"counted_above", begin.chief.counted_above},
                      {"closed_above", begin.chief.closed_above},
                      {"applied", begin.applied},
                      {"workers", workers},
                      {"streams", std::move(streams)},
                      {"data", std::move(data)},
                      {"by_number", begin.by_number}}
      .dump();
}

std::vector<int64_t> integers_in(const json& object, const char* key, const std::string& what) {
  std::vector<int64_t> all;
  for (const json& one : array_in(object, key, what)) {
    if (!one.is_number_integer()) checkpoint::throw_damaged(what, fmt::format("has '{}' with something else", key));
    all.push_back(one.get<int64_t>());
  }
  return all;
}

struct Staged final : StagedTable {
  explicit Staged(const TableState& state) : table(state.empty()) {}
  RowTable table;
};

class ServedByThreads final : public ServedState {
 public:
  ServedByThreads(const Strategy& strategy, std::shared_ptr<StrategyGate> gate, CoordinatorState& state,
                  int64_t workers, int64_t parts)
      : strategy_(strategy), gate_(std::move(gate)), state_(state), workers_(workers), parts_(parts) {}

  void require_outside_of_steps(const char* call) const override { refuse_in_scheduled_step(call); }
  std::shared_ptr<void> reading() override { return std::make_shared<CallerScope>(Caller::kTask); }
  std::shared_ptr<void> changing(const char* call) override {
    {
      const std::lock_guard<std::recursive_mutex> lock(state_.run_mutex);
      if (state_.processes != nullptr) {
        throw UsageError("LS-COORDINATE",
                         fmt::format("{} was called inside coordinate(), and the tasks of the run are processes", call),
                         "restore before coordinate(), on the chief at least");
      }
    }
    struct Changing {
      Changing(ServedByThreads& its_served, const char* its_call)
          : served(its_served), run(served.state_.run_mutex), gate(std::in_place, served.gate_, its_call) {}
      ~Changing() {
        gate.reset();  // a function that still runs may pull, and the run ends only when that is answered
        served.restart();
      }
      ServedByThreads& served;
      // In the order of cut(), which needs the gate too.
      std::lock_guard<std::recursive_mutex> run;
      std::optional<GateHold> gate;
    };
    return std::make_shared<Changing>(*this, call);
  }

  ServedCut cut(FunctionRef<void(const ServedView&)> take) override {
    const std::lock_guard<std::recursive_mutex> lock(state_.run_mutex);
    ServedCut cut;
    const CallerScope reads(Caller::kTask);
    CoordinatedRun* const run = state_.processes != nullptr ? state_.processes : state_.run;
    const auto capture_at = [&](const RunBegin& begin) {
      const GateHold hold(gate_, "Checkpoint::save");
      take({.goes_on = run != nullptr,
            .cursor_of = [&](const DistributedDataset& data) -> std::optional<lockstep::data::Cursor> {
              if (state_.run == nullptr) return std::nullopt;
              return state_.run->place_of(data, begin);
            }});
      fill(cut, begin);
    };
    if (run == nullptr) {
      capture_at(begin_at_rest());
    } else {
      gate_->require_not_inside("Checkpoint::save");  // whoever is inside waits for this thread, which waits for tasks
      run->at_cut(capture_at);
    }
    return cut;
  }

  std::vector<std::string> tables() const override {
    std::vector<std::string> names;
    for (const auto& one : living()) names.push_back(one->table.options().name);
    return names;
  }

  std::string misfit(const std::string& table, const std::string& record) const override {
    const std::string what = fmt::format("table '{}' in the checkpoint", shown(table));
    const json saved = parse_object(record, what, kDepth);
    std::vector<std::string> differences;
    const bool has_rows = integer_in(saved, "kept", what) > 0;
    for (const auto& [name, here] : identity_of(*state_of(table), strategy_.seed())) {
      if (!has_rows && (name == std::string_view("rule") || name == std::string_view("slots"))) continue;
      const std::string there = checkpoint::text_in(saved, name, what);
      if (there != here)
        differences.push_back(fmt::format("{} is '{}' there, and '{}' here", name, shown(there), here));
    }
    integer_in(saved, "evicted_at", what);
    if (differences.empty()) return {};
    return fmt::format("table '{}', whose {}", shown(table), fmt::join(differences, ", whose "));
  }

  std::shared_ptr<StagedTable> stage(const std::string& table, SavedTableSource& source) const override {
    const auto state = state_of(table);
    auto staged = std::make_shared<Staged>(*state);
    if (state->rule) staged->table.use(std::make_shared<RowRule>(state->rule, table));
    load_rows(staged->table, state->table.format(), source);
    return staged;
  }

  void take(const std::string& table, const std::string& record, StagedTable& rows) override {
    const std::string what = fmt::format("table '{}' in the checkpoint", shown(table));
    const json saved = parse_object(record, what, kDepth);
    const auto state = state_of(table);
    state->table.take(std::move(dynamic_cast<Staged&>(rows).table));
    state->evicted_at = integer_in(saved, "evicted_at", what);
    state->promised_rows = 0;
    if (state->rule && saved.contains("learning_rate") && saved["learning_rate"].is_number())
      state->rule->set_learning_rate(saved["learning_rate"].get<double>());
  }

  void check_steps(const std::string& steps) const override { begin_of(steps); }

  void take_steps(const std::string& steps) override {
    auto [begin, workers] = begin_of(steps);
    if (workers != workers_ && !begin.streams.empty()) {
      begin.streams.clear();
      log(LogLevel::kWarning,
          fmt::format("the checkpoint is of {} workers, and this run has {}: their own streams, which "
                      "distribute_to_workers makes, are cut in another way, and begin anew",
                      workers, workers_));
    }
    // Data sets of this process go back now; others go on at their places when a step asks for them.
    for (const UsedData& one : data_at_hand()) {
      const lockstep::data::Cursor now = one.data->cursor();
      const UsedData here{.data = one.data, .place = now};
      const auto saved =
          std::ranges::find_if(begin.data, [&](const UsedData& place) { return here.is_alike(place.place); });
      if (saved == begin.data.end()) continue;
      one.data->seek(saved->place);
      begin.data.erase(saved);
    }
    state_.begin = std::move(begin);
    state_.runs = strategy_.step();
    must_restart_ = true;
  }

 private:
  /// Begins a run that is under way anew, where its counts were restored.
  void restart() noexcept try {
    if (std::exchange(must_restart_, false) && state_.restart) state_.restart();
  } catch (const std::exception& error) {
    log(LogLevel::kError, fmt::format("the run could not begin anew after a restore: {}", error.what()));
  }

  /// That steps of this process have asked for.
  std::vector<UsedData> data_at_hand() const {
    std::vector<UsedData> all = state_.run == nullptr ? state_.begin.data : state_.run->next_begin().data;
    std::erase_if(all, [](const UsedData& one) { return !one.data; });
    return all;
  }

  std::vector<std::shared_ptr<TableState>> living() const {
    std::vector<std::shared_ptr<TableState>> all;
    for (const auto& one : state_.tables) {
      if (auto table = one.lock()) all.push_back(std::move(table));
    }
    return all;
  }

  std::shared_ptr<TableState> state_of(const std::string& table) const {
    for (auto& one : living()) {
      if (one->table.options().name == table) return one;
    }
    throw InternalError("LS-INTERNAL", fmt::format("table '{}' went away during a restore", shown(table)),
                        "please report it");
  }

  /// Where the run of a checkpoint goes on, and of how many workers it was.
  std::pair<RunBegin, int64_t> begin_of(const std::string& steps) const {
    RunBegin begin = begin_of_step(strategy_.step(), parts_);
    if (steps.empty()) return {std::move(begin), workers_};
    const std::string what = "what the checkpoint has of scheduled steps";
    const json saved = parse_object(steps, what, kDepth);
    ChiefCut& chief = begin.chief;
    chief.counted = integer_in(saved, "counted", what);
    chief.floor = integer_in(saved, "floor", what);
    chief.counted_above = integers_in(saved, "counted_above", what);
    chief.closed_above = integers_in(saved, "closed_above", what);
    begin.applied = integer_in(saved, "applied", what);
    const auto is_above = [&](int64_t step) { return step >= chief.floor && step - chief.floor < kMostAbove; };
    if (chief.floor < 0 || chief.floor > kMostSteps || chief.counted < 0 || chief.counted > kMostSteps ||
        begin.applied < 0 || !std::ranges::all_of(chief.counted_above, is_above) ||
        !std::ranges::all_of(chief.closed_above, is_above)) {
      checkpoint::throw_damaged(what, "has counts that no run has");
    }
    for (const json& one : array_in(saved, "streams", what)) {
      begin.streams.push_back(
          {integer_in(one, "stream", what), integer_in(one, "worker", what), integers_in(one, "position", what)});
    }
    for (const json& one : array_in(saved, "data", what))
      begin.data.push_back({.place = checkpoint::cursor_of(one.dump(), what + ": a cursor")});
    begin.by_number = saved.contains("by_number") && saved["by_number"] == true;  // older ones do not say it
    return {std::move(begin), integer_in(saved, "workers", what)};
  }

  RunBegin begin_at_rest() const {
    const int64_t runs = strategy_.step();
    RunBegin begin = runs == state_.runs ? state_.begin : begin_of_step(runs, parts_);
    for (UsedData& one : begin.data) {
      if (one.data) one.place = one.data->cursor();
    }
    return begin;
  }

  /// Nothing is said of steps where it follows from the strategy's own step.
  void fill(ServedCut& cut, const RunBegin& begin) const {
    RunBegin implied = begin_of_step(strategy_.step(), parts_);
    implied.chief.position = begin.chief.position;
    if (begin.chief != implied.chief || begin.applied != implied.applied || !begin.streams.empty() ||
        !begin.data.empty() || begin.by_number)
      cut.steps = text_of(begin, workers_);
    for (const auto& one : living()) {
      cut.tables.push_back({one->table.options().name, record_of(*one, strategy_.seed()),
                            tensors_of(std::make_shared<TableCut>(one->table.cut()))});
    }
  }

  const Strategy& strategy_;
  const std::shared_ptr<StrategyGate> gate_;
  CoordinatorState& state_;
  const int64_t workers_;
  const int64_t parts_;
  bool must_restart_ = false;  // guarded by the run's mutex
};

}  // namespace

RunBegin begin_of_step(int64_t step, int64_t parts) {
  return {.chief = {.counted = step * parts, .floor = step * parts}, .applied = step * parts};
}

std::unique_ptr<ServedState> served_by_threads(const Strategy& strategy, std::shared_ptr<StrategyGate> gate,
                                               CoordinatorState& state, int64_t workers, int64_t parts) {
  return std::make_unique<ServedByThreads>(strategy, std::move(gate), state, workers, parts);
}

}  // namespace lockstep::internal::server
