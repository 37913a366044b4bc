// Which devices UCX uses for a network interface.
#pragma once

#include <string>

namespace lockstep::internal::inline comm {

/// The interface and the devices with RDMA behind it, as UCX_NET_DEVICES takes them: "eth0,mlx5_0:1".
std::string ucx_devices(const std::string& network_interface);

}  // namespace lockstep::internal::comm
