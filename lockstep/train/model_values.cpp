#include "lockstep/train/model_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/trainer.h"

namespace lockstep::internal::inline train {

std::vector<std::pair<std::string, at::Tensor>> model_values(const Trainer& trainer) {
  std::set<std::string> names;
  for (const Variable& variable : trainer.variables()) names.insert(variable.name());
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (const StateItem& item : trainer.strategy().state_items()) {
    if (item.kind != StateItem::Kind::kMirrored || names.count(item.name) == 0) continue;
    const std::vector<at::Tensor> one = item.view ? item.view() : item.read();
    if (!one.empty()) values.emplace_back(item.name, one.front());
  }
  std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return values;
}

at::Tensor as_floats(const at::Tensor& value) {
  if (!at::isFloatingType(value.scalar_type())) return {};
  return value.detach().to(at::kCPU, at::kFloat).contiguous();
}

}  // namespace lockstep::internal::train
