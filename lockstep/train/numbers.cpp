#include "lockstep/train/numbers.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::internal::inline train {

nlohmann::json json_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

double number_of(const nlohmann::json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto& text = json.get_ref<const std::string&>();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace lockstep::internal::train
