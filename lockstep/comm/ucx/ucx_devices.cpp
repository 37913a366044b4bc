#include "lockstep/comm/ucx/ucx_devices.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace lockstep::internal::inline comm {

std::string ucx_devices(const std::string& network_interface) {
  std::string devices = network_interface;
  const std::filesystem::path folder = "/sys/class/net/" + network_interface;
  int port = 0;
  std::ifstream(folder / "dev_port") >> port;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(folder / "device/infiniband", error)) {
    devices += "," + device.path().filename().string() + ":" + std::to_string(port + 1);
  }
  return devices;
}

}  // namespace lockstep::internal::comm
