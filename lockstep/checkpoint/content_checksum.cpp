#include "lockstep/checkpoint/content_checksum.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace lockstep::internal::inline checkpoint {

struct ContentChecksum::State {
  XXH3_state_t hash;  // its members are aligned, so it is made by new
};

ContentChecksum::ContentChecksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }
ContentChecksum::~ContentChecksum() = default;

void ContentChecksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
}

std::string ContentChecksum::digits() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->hash);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string content_checksum(std::span<const std::byte> bytes) {
  ContentChecksum checksum;
  checksum.add(bytes);
  return checksum.digits();
}

std::string content_checksum(std::string_view text) { return content_checksum(std::as_bytes(std::span(text))); }

}  // namespace lockstep::internal::checkpoint
