#include "lockstep/comm/network/frame.h"

#include <cstring>

namespace lockstep::internal {

namespace {

/// length of all after it (4 bytes), kind (1), number (8), calls (24), about (8), text
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kFixedBytes = 41;

bool is_known(uint8_t kind) { return (kind >= 1 && kind <= 11) || (kind >= 16 && kind <= 23); }

}  // namespace

std::string encode(const Frame& frame) {
  const auto length = static_cast<uint32_t>(kFixedBytes + frame.text.size());
  std::string bytes(kLengthBytes + kFixedBytes, '\0');
  std::memcpy(bytes.data(), &length, 4);
  bytes[kLengthBytes] = static_cast<char>(frame.kind);
  std::memcpy(bytes.data() + kLengthBytes + 1, &frame.number, 8);
  std::memcpy(bytes.data() + kLengthBytes + 9, &frame.calls.taken, 8);
  std::memcpy(bytes.data() + kLengthBytes + 17, &frame.calls.returned, 8);
  std::memcpy(bytes.data() + kLengthBytes + 25, &frame.calls.begun, 8);
  std::memcpy(bytes.data() + kLengthBytes + 33, &frame.about, 8);
  return bytes + frame.text;
}

std::optional<Frame> FrameReader::next() {
  if (is_malformed_ || bytes_.size() < kLengthBytes) return {};
  uint32_t length = 0;
  std::memcpy(&length, bytes_.data(), kLengthBytes);
  is_malformed_ = length < kFixedBytes || length > kLongestFrame;
  if (is_malformed_ || bytes_.size() < kLengthBytes + length) return {};
  const auto kind = static_cast<uint8_t>(bytes_[kLengthBytes]);
  is_malformed_ = !is_known(kind);
  if (is_malformed_) return {};
  Frame frame{.kind = static_cast<Frame::Kind>(kind)};
  std::memcpy(&frame.number, bytes_.data() + kLengthBytes + 1, 8);
  std::memcpy(&frame.calls.taken, bytes_.data() + kLengthBytes + 9, 8);
  std::memcpy(&frame.calls.returned, bytes_.data() + kLengthBytes + 17, 8);
  std::memcpy(&frame.calls.begun, bytes_.data() + kLengthBytes + 25, 8);
  std::memcpy(&frame.about, bytes_.data() + kLengthBytes + 33, 8);
  frame.text.assign(bytes_, kLengthBytes + kFixedBytes, length - kFixedBytes);
  bytes_.erase(0, kLengthBytes + length);
  return frame;
}

}  // namespace lockstep::internal
