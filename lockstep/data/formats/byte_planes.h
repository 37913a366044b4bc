// Pixels of three bytes as three planes.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// Copies `pixels` times red, green and blue into three planes, which begin `plane` bytes apart at `to`. The planes
/// overlap neither each other nor `from`.
void copy_to_planes(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane);

/// The same, byte by byte; what processors without the instructions do.
void copy_to_planes_plain(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane);

}  // namespace lockstep::internal
