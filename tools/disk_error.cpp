#include "tools/disk_error.h"

#include <fmt/format.h>

#include <cstdio>

#include "lockstep/core/error.h"

namespace lockstep::tools {

bool write_or_say(bool is_chief, const std::string& what, const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const Error& error) {
    const bool is_here = dynamic_cast<const DataError*>(&error) != nullptr;
    if (!is_here && error.code() != "LS-PEER-FAILED") throw;  // as which a DataError comes to the other workers
    say_disk_error(is_chief, what, error);
    return false;
  }
}

void say_disk_error(bool is_chief, const std::string& what, const std::exception& error) {
  const bool is_here = dynamic_cast<const DataError*>(&error) != nullptr;
  if (is_here || is_chief) std::fputs(fmt::format("lockstep train: {}: {}\n", what, error.what()).c_str(), stderr);
}

}  // namespace lockstep::tools
