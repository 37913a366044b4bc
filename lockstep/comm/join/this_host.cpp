#include "lockstep/comm/join/this_host.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace lockstep::internal::inline comm {

std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network = {};
  stat("/proc/self/ns/net", &network);
  return fmt::format("{} {}:{} user {}", boot, network.st_dev, network.st_ino, geteuid());
}

std::string host_name() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "without a name";
  return name.data();
}

}  // namespace lockstep::internal::comm
