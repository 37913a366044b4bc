#include "lockstep/comm/shared_memory/ring_stream.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::internal::inline comm {

RingSending::RingSending(const Segment& segment, int64_t from, int64_t to, MessageHead head,
                         std::span<const std::byte> bytes)
    : segment_(&segment),
      ring_(segment.ring(from, to), segment.ring_bytes(from, to), segment.ring_size()),
      to_(to),
      head_(head),
      bytes_(bytes) {}

bool RingSending::advance() {
  if (is_over()) return false;
  std::size_t room = ring_.room();
  if (!is_head_sent_) {
    if (room < sizeof(head_)) return false;
    ring_.put(&head_, sizeof(head_));
    room -= sizeof(head_);
    is_head_sent_ = true;
  } else if (room == 0) {
    return false;
  }
  const std::size_t count = std::min({room, bytes_.size() - sent_, kPieceOfRing});
  if (count > 0) ring_.put(bytes_.data() + sent_, count);
  sent_ += count;
  ring_.publish();
  segment_->wake(to_);
  return true;
}

RingReceiving::RingReceiving(const Segment& segment, int64_t from, int64_t to, uint64_t call,
                             std::span<std::byte> place)
    : segment_(&segment),
      ring_(segment.ring(from, to), segment.ring_bytes(from, to), segment.ring_size()),
      from_(from),
      to_(to),
      kind_(MessageHead::Kind::kBytes),
      call_(call),
      place_(place),
      record_(nullptr) {}

RingReceiving::RingReceiving(const Segment& segment, int64_t from, int64_t to, uint64_t call, std::string& record)
    : RingReceiving(segment, from, to, call, std::span<std::byte>()) {
  kind_ = MessageHead::Kind::kRecord;
  record_ = &record;
}

bool RingReceiving::advance(std::string& problem) {
  if (is_over()) return false;
  std::size_t there = ring_.there();
  if (ring_.is_damaged(there)) {
    problem = fmt::format("the memory between worker {} and worker {} was damaged", from_, to_);
    return false;
  }
  if (!is_head_read_) {
    MessageHead head;
    if (there < sizeof(head)) return false;
    ring_.take(&head, sizeof(head));
    ExpectedMessage expected{.kind = kind_, .call = call_};
    if (!record_) expected.size = place_.size();
    problem = objection_to(head, expected, from_, to_);
    if (!problem.empty()) return false;
    if (record_) {
      record_->resize(head.size);
      place_ = std::as_writable_bytes(std::span(*record_));
    }
    there -= sizeof(head);
    is_head_read_ = true;
  } else if (there == 0) {
    return false;
  }
  const std::size_t count = std::min({there, place_.size() - got_, kPieceOfRing});
  if (count > 0) ring_.take(place_.data() + got_, count);
  got_ += count;
  ring_.release();
  segment_->wake(from_);
  return true;
}

}  // namespace lockstep::internal::comm
