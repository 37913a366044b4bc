#include "lockstep/server/record/recorded_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/record/value_digest.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"
#include "lockstep/version.h"

namespace lockstep::internal::inline server {

namespace {

using Json = nlohmann::ordered_json;

/// Keys of the object, and what they are called in messages.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"lockstep", "the version of Lockstep"},
    {"fingerprint", "the fingerprint"},
    {"workers", "the number of workers"},
    {"servers", "the number of servers"},
    {"staleness", ".staleness"},
    {"seed", "the seed"},
    {"threads_per_replica", ".threads_per_replica"},
    {"wire", ".wire"},
    {"steps", "the names of steps"},
    {"variables", "variables"},
    {"optimizers", "optimizers"},
    {"tables", "tables"},
    {"counted", "the number of steps that count already"},
    {"first", "the number of the first step"},
    {"above", "higher numbers that are not scheduled again"},
    {"numbers", "learning rates and other numbers of optimizers at the beginning"},
    {"values", "the values at the beginning"}};

std::string short_text(const Json& value) {
  constexpr std::size_t kMost = 200;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

/// The entries of a list that the other one does not have; the lists themselves where only their order differs.
Json only_in(const Json& one, const Json& other) {
  if (!one.is_array() || !other.is_array()) return one;
  Json only = Json::array();
  for (const Json& entry : one) {
    if (std::ranges::find(other, entry) == other.end()) only.push_back(entry);
  }
  return only;
}

/// Of the numbers of optimizers, which no variable has.
uint64_t digest_of_numbers(const Strategy& strategy) {
  uint64_t digest = 0;
  for (const StateItem& item : strategy.state_items()) {
    if (item.kind != StateItem::Kind::kStepCount && item.kind != StateItem::Kind::kLearningRate &&
        item.kind != StateItem::Kind::kOption)
      continue;
    digest = Digest(digest).with(item.name).value();
    for (const at::Tensor& value : item.read()) digest = digest_with(digest, value);
  }
  return digest;
}

}  // namespace

std::string text_of(const RecordedProgram& program) {
  const Strategy& strategy = program.strategy;
  Json json;
  json["lockstep"] = LOCKSTEP_VERSION;
  json["fingerprint"] = fingerprint_of(strategy);
  json["workers"] = program.workers;
  json["servers"] = program.servers;
  json["staleness"] = program.staleness ? Json(*program.staleness) : Json("unbounded");
  json["seed"] = strategy.seed();
  json["threads_per_replica"] = program.threads_per_replica;
  json["wire"] = program.wire;
  json["steps"] = program.steps;
  Json variables = Json::array();
  uint64_t values = 0;
  for (const Variable& one : strategy.variables()) {
    variables.push_back(fmt::format("{} {} [{}]", one.name(), c10::toString(one.dtype()),
                                    fmt::join(one.sizes().begin(), one.sizes().end(), ", ")));
    const int64_t components = one.state().on_write() ? 1 : strategy.num_replicas();
    for (int64_t r = 0; r < components; ++r) values = digest_with(values, one.state().component(r));
  }
  json["variables"] = std::move(variables);
  json["optimizers"] = StrategyAccess::optimizer_texts(strategy);
  Json tables = Json::array();
  for (const TableState* one : program.tables) {
    tables.push_back(fmt::format("{}, of which it keeps {}, learning rate {}", text_of(*one), one->table.size(),
                                 one->rule ? one->rule->learning_rate() : 0));
  }
  json["tables"] = std::move(tables);
  json["counted"] = program.counted;
  json["first"] = program.floor;
  json["above"] = program.above;
  json["numbers"] = fmt::format("digest {:016x}", digest_of_numbers(strategy));
  json["values"] = fmt::format("digest {:016x}", values);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void require_same_program(const std::string& recorded, const std::string& now) {
  const Json then = Json::parse(recorded, nullptr, false);
  const Json here = Json::parse(now);
  if (!then.is_object()) {
    throw DataError("LS-RUN-RECORD", "the record does not say which program it is of",
                    "give a record that is not damaged");
  }
  std::string differences;
  for (const auto& [key, name] : kNames) {
    const Json one = then.value(std::string(key), Json());
    const Json& other = here.at(std::string(key));
    if (one == other) continue;
    differences += fmt::format("{}{}: {} in the record, and {} here", differences.empty() ? "" : "; ", name,
                               short_text(only_in(one, other)), short_text(only_in(other, one)));
  }
  if (differences.empty()) return;
  throw UsageError("LS-REPLAY-DIFFERS", "this program is not that of the record: " + differences,
                   "replay with the build, the program and the options that have made the record");
}

}  // namespace lockstep::internal::server
