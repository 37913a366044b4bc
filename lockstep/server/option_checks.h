// Which numbers the options of partitioners and of tables may be, and how an initial value is told.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/server/embedding_options.h"

namespace lockstep::internal::inline server {

/// A UsageError (LS-OPTION) that names who was given which value of which option, where it is below `least`.
inline void check_at_least(int64_t least, std::string_view who, std::string_view option, int64_t value) {
  if (value >= least) return;
  throw UsageError("LS-OPTION", fmt::format("{} was given {} = {}", who, option, value),
                   fmt::format("give a number of at least {}", least));
}

/// What an initial value is, as far as it can be compared: "uniform(-0.05, 0.05)", or "a function".
std::string text_of(const RowInitial& initial);

}  // namespace lockstep::internal::server
