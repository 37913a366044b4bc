// The checksum of a checkpoint's pieces: XXH3 with 128 bits, which is the same on every machine.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::internal::inline checkpoint {

class ContentChecksum {
 public:
  ContentChecksum();
  ~ContentChecksum();
  ContentChecksum(const ContentChecksum&) = delete;
  ContentChecksum& operator=(const ContentChecksum&) = delete;

  void add(std::span<const std::byte> bytes);
  /// Of everything that was added: 32 hexadecimal digits in lower case.
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string content_checksum(std::span<const std::byte> bytes);
std::string content_checksum(std::string_view text);

}  // namespace lockstep::internal::checkpoint
