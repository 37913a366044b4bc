#include "lockstep/data/formats/records/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace lockstep::internal::inline data {

namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

/// tables[k][b] is the checksum of the byte b with k zero bytes behind it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

uint32_t by_tables(uint32_t crc, const char* bytes, std::size_t count) {
  for (; count >= 8; bytes += 8, count -= 8) {
    uint32_t folded = 0;
    for (int i = 0; i < 4; ++i) folded |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    folded ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      crc ^= kTables[7 - i][(folded >> (8 * i)) & 0xff];
      crc ^= kTables[3 - i][static_cast<unsigned char>(bytes[4 + i])];
    }
  }
  for (; count > 0; ++bytes, --count) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(*bytes)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const char* bytes, std::size_t count) {
  uint64_t wide = crc;
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; count > 0; ++bytes, --count) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(*bytes));
  return crc;
}
#elif defined(__aarch64__)
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

__attribute__((target("+crc"))) uint32_t by_instruction(uint32_t crc, const char* bytes, std::size_t count) {
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof word);
    crc = __crc32cd(crc, word);
  }
  for (; count > 0; ++bytes, --count) crc = __crc32cb(crc, static_cast<unsigned char>(*bytes));
  return crc;
}
#else
bool has_instruction() { return false; }

uint32_t by_instruction(uint32_t crc, const char* bytes, std::size_t count) { return by_tables(crc, bytes, count); }
#endif

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const bool has = has_instruction();
  if (has) return ~by_instruction(~0u, bytes.data(), bytes.size());
  return crc32c_by_tables(bytes);
}

uint32_t crc32c_by_tables(std::string_view bytes) { return ~by_tables(~0u, bytes.data(), bytes.size()); }

}  // namespace lockstep::internal::data
