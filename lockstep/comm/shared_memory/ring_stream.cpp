#include "lockstep/comm/shared_memory/ring_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lockstep::internal {

namespace {

/// Copies into a ring at a position, and out of it. The caller knows that there is room, or that the bytes are there.
void copy_in(std::byte* ring, std::size_t ring_size, uint64_t position, const void* from, std::size_t count) {
  const std::size_t begin = position & (ring_size - 1);
  const std::size_t first = std::min(count, ring_size - begin);
  std::memcpy(ring + begin, from, first);
  if (first < count) std::memcpy(ring, static_cast<const std::byte*>(from) + first, count - first);
}
void copy_out(const std::byte* ring, std::size_t ring_size, uint64_t position, void* to, std::size_t count) {
  const std::size_t begin = position & (ring_size - 1);
  const std::size_t first = std::min(count, ring_size - begin);
  std::memcpy(to, ring + begin, first);
  if (first < count) std::memcpy(static_cast<std::byte*>(to) + first, ring, count - first);
}

/// The other side hears of each piece, so that both copy at the same time, and what one writes the other finds in the
/// caches.
constexpr std::size_t kPiece = std::size_t{32} << 10;

}  // namespace

Sending::Sending(const Segment& segment, int64_t from, int64_t to, MessageHead head, std::span<const std::byte> bytes)
    : segment_(&segment),
      ring_(&segment.ring(from, to)),
      data_(segment.ring_bytes(from, to)),
      to_(to),
      head_(head),
      bytes_(bytes) {}

bool Sending::advance() {
  if (is_over()) return false;
  const std::size_t size = segment_->ring_size();
  const uint64_t written = ring_->written.load(std::memory_order_relaxed);
  std::size_t room = size - static_cast<std::size_t>(written - ring_->read.load());
  uint64_t position = written;
  if (!is_head_sent_) {
    if (room < sizeof(head_)) return false;
    copy_in(data_, size, position, &head_, sizeof(head_));
    position += sizeof(head_);
    room -= sizeof(head_);
    is_head_sent_ = true;
  }
  const std::size_t count = std::min({room, bytes_.size() - sent_, kPiece});
  if (count > 0) copy_in(data_, size, position, bytes_.data() + sent_, count);
  sent_ += count;
  position += count;
  if (position == written) return false;
  ring_->written.store(position);
  segment_->wake(to_);
  return true;
}

Receiving::Receiving(const Segment& segment, int64_t from, int64_t to, uint64_t call, std::span<std::byte> place)
    : segment_(&segment),
      ring_(&segment.ring(from, to)),
      data_(segment.ring_bytes(from, to)),
      from_(from),
      to_(to),
      kind_(MessageHead::Kind::kBytes),
      call_(call),
      place_(place),
      record_(nullptr) {}

Receiving::Receiving(const Segment& segment, int64_t from, int64_t to, uint64_t call, std::string& record)
    : Receiving(segment, from, to, call, std::span<std::byte>()) {
  kind_ = MessageHead::Kind::kRecord;
  record_ = &record;
}

bool Receiving::advance(std::string& problem) {
  if (is_over()) return false;
  const std::size_t size = segment_->ring_size();
  const uint64_t read = ring_->read.load(std::memory_order_relaxed);
  auto there = static_cast<std::size_t>(ring_->written.load() - read);
  if (there > size) {
    problem = fmt::format("the memory between worker {} and worker {} was damaged", from_, to_);
    return false;
  }
  uint64_t position = read;
  if (!is_head_read_) {
    MessageHead head;
    if (there < sizeof(head)) return false;
    copy_out(data_, size, position, &head, sizeof(head));
    ExpectedMessage expected{.kind = kind_, .call = call_};
    if (!record_) expected.size = place_.size();
    problem = objection_to(head, expected, from_, to_);
    if (!problem.empty()) return false;
    if (record_) {
      record_->resize(head.size);
      place_ = std::as_writable_bytes(std::span(*record_));
    }
    position += sizeof(head);
    there -= sizeof(head);
    is_head_read_ = true;
  }
  const std::size_t count = std::min({there, place_.size() - got_, kPiece});
  if (count > 0) copy_out(data_, size, position, place_.data() + got_, count);
  got_ += count;
  position += count;
  if (position == read) return false;
  ring_->read.store(position);
  segment_->wake(from_);
  return true;
}

}  // namespace lockstep::internal
