#include "tools/run/worker/process_state.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::tools {

ProcessState process_state(pid_t pid) {
  constexpr unsigned kExiting = 4;  // PF_EXITING of the kernel
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // the name may hold blanks and brackets itself
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, group, session, terminal, terminal_group;
  ProcessState result;
  unsigned flags = 0;
  fields >> state >> result.parent >> group >> session >> terminal >> terminal_group >> flags;
  result.is_exiting = (flags & kExiting) != 0;
  return result;
}

}  // namespace lockstep::tools
