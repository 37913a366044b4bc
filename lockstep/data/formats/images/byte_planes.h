// Pixels of three bytes as three planes.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline data {

/// Copies `pixels` RGB pixels into three planes, which begin `plane` bytes apart at `to`. The planes
/// overlap neither each other nor `from`.
void copy_to_planes(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane);

/// The same, byte by byte; used where the processor has no SSSE3.
void copy_to_planes_plain(const unsigned char* from, int64_t pixels, unsigned char* to, int64_t plane);

}  // namespace lockstep::internal::data
