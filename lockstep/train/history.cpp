#include "lockstep/train/history.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/train/numbers.h"

namespace lockstep {

std::vector<std::pair<int64_t, double>> History::of(const std::string& name) const {
  std::vector<std::pair<int64_t, double>> values;
  for (std::size_t i = 0; i < logs_.size(); ++i) {
    if (const auto found = logs_[i].find(name); found != logs_[i].end())
      values.emplace_back(numbers_[i], found->second);
  }
  return values;
}

nlohmann::json History::to_json() const {
  std::set<std::string> names;
  for (const Logs& logs : logs_) {
    for (const auto& [name, value] : logs) names.insert(name);
  }
  nlohmann::json history = nlohmann::json::object();
  for (const std::string& name : names) {
    nlohmann::json& values = history[name] = nlohmann::json::array();
    for (const Logs& logs : logs_) {
      const auto found = logs.find(name);
      values.push_back(found == logs.end() ? nlohmann::json() : internal::json_of(found->second));
    }
  }
  return {{"epoch", numbers_}, {"history", history}};
}

History History::from_json(const nlohmann::json& json) try {
  History made;
  for (const nlohmann::json& epoch : json.at("epoch")) made.add(epoch.get<int64_t>(), {});
  for (const auto& [name, values] : json.at("history").items()) {
    if (values.size() != made.logs_.size()) {
      throw UsageError("LS-STATE-MISFIT", "the JSON of a history has lists of different lengths",
                       "give what History::to_json() gave");
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!values[i].is_null()) made.logs_[i][name] = internal::number_of(values[i]);
    }
  }
  return made;
} catch (const nlohmann::json::exception& error) {
  throw UsageError("LS-STATE-MISFIT", std::string("the JSON of a history cannot be read: ") + error.what(),
                   "give what History::to_json() gave");
}

void History::add(int64_t epoch, Logs logs) {
  numbers_.push_back(epoch);
  logs_.push_back(std::move(logs));
}

}  // namespace lockstep
