// CRC-32C, the checksum of TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::internal::inline data {

/// CRC-32C (Castagnoli; RFC 3720) of these bytes.
uint32_t crc32c(std::string_view bytes);
/// The same without the processor's instruction for it.
uint32_t crc32c_by_tables(std::string_view bytes);

/// The form in which TFRecord files store it: turned by 15 bits, plus a constant.
inline uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace lockstep::internal::data
