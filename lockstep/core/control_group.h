// The control groups that this process is in: where the limits of a container are read.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/function_ref.h"

namespace lockstep::internal {

/// Calls `visit(folder, unified)` for the folder of each control group of this process that has `controller` ("memory",
/// "cpu", "pids"), and for each group around it, up to the mount; `unified` tells version 2 from version 1, whose files
/// have other names. A folder may be missing: inside a container the path may be the host's, of which only the mount
/// itself exists. `root` is where /proc and /sys are looked for: another folder in tests.
void for_each_control_group(const std::string& root, std::string_view controller,
                            FunctionRef<void(const std::string& folder, bool unified)> visit);

}  // namespace lockstep::internal
