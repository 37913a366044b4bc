#include "lockstep/server/remote/told_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <span>

#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/remote/tensor_bytes.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline server {

namespace {

/// So many rates are told beyond those that are needed.
constexpr int64_t kAhead = 4096;
/// The rate of the step behind the last one that is applied is asked for too.
constexpr int64_t kLooked = 2;

enum class Follow : uint8_t { kNone, kRates };

/// The rates of the steps from `first` to `end`, or, of a function that throws, those before and its error.
void put_rates(std::string& bytes, const Schedule& schedule, int64_t first, int64_t end) {
  std::vector<double> rates;
  std::exception_ptr error;
  try {
    for (int64_t step = first; step < end; ++step) rates.push_back(schedule(step));
  } catch (...) {
    error = std::current_exception();
  }
  ByteWriter to(bytes);
  to.put(first);
  to.put_list(rates);
  to.put(static_cast<uint8_t>(error != nullptr));
  if (error) put_error(bytes, error);
}

void set_schedule(OptimizerCounts& counts, int64_t group, const Schedule& schedule) {
  const RuleSettings settings = counts.rule(group).settings();
  counts.set(group, std::span(&settings, 1), &schedule);
}

}  // namespace

ToldRates::ToldRates(const Strategy& strategy, int64_t parts, bool are_known) : strategy_(strategy), parts_(parts) {
  for (const Optimizer& one : StrategyAccess::optimizers(strategy)) {
    const OptimizerCounts& counts = one.shared_state().counts();
    optimizers_[one.name()] = {.version = are_known ? counts.schedule_version() : ~uint64_t{0},
                               .base = counts.applied_steps()};
  }
}

void ToldRates::put(std::string& bytes, int64_t scheduled) {
  const std::size_t at = bytes.size();
  uint64_t count = 0;
  ByteWriter to(bytes);
  to.put(count);
  bool has_rates = false;
  for (const Optimizer& one : StrategyAccess::optimizers(strategy_)) {
    const auto found = optimizers_.find(one.name());
    if (found == optimizers_.end()) continue;
    Told& told = found->second;
    const OptimizerCounts& counts = one.shared_state().counts();
    const int64_t applied = counts.applied_steps();  // the servers' is the same or higher
    const int64_t most = scheduled / parts_ + 1;
    told.base = std::max(told.base, applied - most);  // where the program has set the count
    const int64_t needed = told.base + most + kLooked;
    const bool is_new = told.version != counts.schedule_version() || (told.by_rates && applied < told.first);
    if (is_new) {
      told = {.version = counts.schedule_version(), .base = told.base, .first = applied, .end = applied};
      for (int64_t g = 0; g < counts.num_groups(); ++g) told.by_rates = told.by_rates || counts.schedule(g);
    }
    if (is_new || (told.by_rates && needed + kAhead / 2 > told.end)) {
      const int64_t first = told.end;
      told.end = std::max(needed + kAhead, first);
      to.put_text(one.name());
      to.put(static_cast<uint8_t>(is_new));
      to.put(static_cast<uint64_t>(counts.num_groups()));
      for (int64_t g = 0; g < counts.num_groups(); ++g) {
        const Schedule& schedule = counts.schedule(g);
        to.put(schedule ? Follow::kRates : Follow::kNone);
        if (schedule) put_rates(bytes, schedule, first, told.end);
      }
      ++count;
    }
    has_rates = has_rates || told.by_rates;
  }
  std::memcpy(bytes.data() + at, &count, sizeof count);
  enough_for_ = has_rates ? scheduled + kAhead / 2 * parts_ : std::numeric_limits<int64_t>::max();
}

struct FollowedRates::Table {
  int64_t first = 0;
  std::deque<double> rates;
  std::exception_ptr error;  // of the step behind them

  double of(int64_t step) const {
    const int64_t i = step - first;
    if (i >= 0 && i < static_cast<int64_t>(rates.size())) return rates[static_cast<std::size_t>(i)];
    if (error && i >= 0) std::rethrow_exception(error);
    throw InternalError("LS-INTERNAL",
                        fmt::format("the chief has told the learning rates of the steps {} to {}, and step {} comes",
                                    first, first + static_cast<int64_t>(rates.size()) - 1, step),
                        "please report it");
  }
};

void FollowedRates::take(MessageReader& from) {
  std::map<std::string, Optimizer> optimizers;
  for (const Optimizer& one : StrategyAccess::optimizers(strategy_)) optimizers.emplace(one.name(), one);
  for (std::size_t left = from.get_count(sizeof(uint64_t)); left > 0; --left) {
    const std::string name(from.get_text());
    const auto found = optimizers.find(name);
    from.expect(found != optimizers.end());
    OptimizerCounts& counts = found->second.shared_state().counts();
    const bool is_new = from.get<uint8_t>() != 0;
    from.expect(from.get<uint64_t>() == static_cast<uint64_t>(counts.num_groups()));
    for (int64_t g = 0; g < counts.num_groups(); ++g) {
      const Group group(name, g);
      own_.try_emplace(group, counts.schedule(g));
      std::shared_ptr<Table>& table = tables_[group];
      if (is_new) table.reset();
      const auto follow = from.get<Follow>();
      from.expect(follow == Follow::kNone || follow == Follow::kRates);
      if (follow == Follow::kNone) {
        if (is_new) set_schedule(counts, g, {});
        continue;
      }
      const auto first = from.get<int64_t>();
      const std::vector<double> rates = from.get_list<double>();
      if (!table) table = std::make_shared<Table>(Table{.first = first, .rates = {}, .error = nullptr});
      if (!table->error) {
        from.expect(first == table->first + static_cast<int64_t>(table->rates.size()));
        table->rates.insert(table->rates.end(), rates.begin(), rates.end());
      }
      for (; !table->rates.empty() && table->first < counts.applied_steps(); ++table->first) table->rates.pop_front();
      if (from.get<uint8_t>() != 0) {
        const std::exception_ptr error = get_error(from);
        if (!table->error) table->error = error;
      }
      set_schedule(counts, g, [table](int64_t step) { return table->of(step); });
    }
  }
}

FollowedRates::~FollowedRates() {
  for (const Optimizer& one : StrategyAccess::optimizers(strategy_)) {
    OptimizerCounts& counts = one.shared_state().counts();
    for (int64_t g = 0; g < counts.num_groups(); ++g) {
      if (const auto found = own_.find({one.name(), g}); found != own_.end()) set_schedule(counts, g, found->second);
    }
  }
}

}  // namespace lockstep::internal::server
