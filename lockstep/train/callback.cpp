#include "lockstep/train/callback.h"

#include <c10/util/Type.h>

#include <nlohmann/json.hpp>

namespace lockstep {

nlohmann::json Callback::state() const { return {}; }

void Callback::load(const nlohmann::json& /*state*/) {}

std::string Callback::name() const { return c10::demangle(typeid(*this).name()); }

}  // namespace lockstep
