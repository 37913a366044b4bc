// Which numbers the options of partitioners and of tables may be.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {

/// A UsageError (LS-OPTION) that names who was given which value of which option, where it is below `least`.
inline void check_at_least(int64_t least, std::string_view who, std::string_view option, int64_t value) {
  if (value >= least) return;
  throw UsageError("LS-OPTION", fmt::format("{} was given {} = {}", who, option, value),
                   fmt::format("give a number of at least {}", least));
}

}  // namespace lockstep::internal::server
