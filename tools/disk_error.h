// What `lockstep train` does where a file cannot be written: it says so, and the rest of the run happens all the same.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace lockstep::tools {

/// Carries out `write`. False where the disk of this worker or of another one refused; then that worker and the chief
/// have said `what`, and the reason, on standard error. Throws all other errors.
bool write_or_say(bool is_chief, const std::string& what, const std::function<void()>& write);

/// Says `what`, and the error of this or of another worker's disk, where write_or_say() would.
void say_disk_error(bool is_chief, const std::string& what, const std::exception& error);

}  // namespace lockstep::tools
