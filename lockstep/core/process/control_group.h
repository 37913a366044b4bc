// Visits the control groups of this process, where the limits of a container stand.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/function_ref.h"

namespace lockstep::internal::inline core {

/// Calls `visit(folder, unified)` for the folder of each control group of this process that has `controller` ("memory",
/// "cpu", "pids"), and for the folder of each group around it, up to the mount. `unified` is true for version 2 of
/// control groups and false for version 1, whose files have other names. A folder may be missing: inside a container
/// the path may be the host's, and only the mount itself exists. /proc and /sys are looked for below `root`, which is
/// another folder in tests.
void for_each_control_group(const std::string& root, std::string_view controller,
                            FunctionRef<void(const std::string& folder, bool unified)> visit);

}  // namespace lockstep::internal::core
