#include "lockstep/comm/network/wire/frame.h"

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline comm {

namespace {

/// length of all after it (4 bytes), kind (1), number (8), calls (24), about (8), text
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kFixedBytes = 41;

bool is_known(uint8_t kind) { return (kind >= 1 && kind <= 11) || (kind >= 16 && kind <= 23); }

}  // namespace

std::string encode(const Frame& frame) {
  std::string bytes;
  bytes.reserve(kLengthBytes + kFixedBytes + frame.text.size());
  ByteWriter to(bytes);
  to.put(static_cast<uint32_t>(kFixedBytes + frame.text.size()));
  to.put(frame.kind);
  to.put(frame.number);
  to.put(frame.calls);
  to.put(frame.about);
  return bytes += frame.text;
}

std::optional<Frame> FrameReader::next() {
  ByteReader reader(bytes_);
  uint32_t length = 0;
  if (is_malformed_ || !reader.get(length)) return {};
  is_malformed_ = length < kFixedBytes || length > kLongestFrame;
  if (is_malformed_ || reader.left().size() < length) return {};
  Frame frame;
  uint8_t kind = 0;
  is_malformed_ = !reader.get(kind) || !is_known(kind) || !reader.get(frame.number) || !reader.get(frame.calls) ||
                  !reader.get(frame.about);
  if (is_malformed_) return {};
  frame.kind = static_cast<Frame::Kind>(kind);
  frame.text = reader.left().substr(0, length - kFixedBytes);
  bytes_.erase(0, kLengthBytes + length);
  return frame;
}

}  // namespace lockstep::internal::comm
