// One message of one call, on its way from one worker to another through their ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/message.h"
#include "lockstep/comm/shared_memory/ring.h"
#include "lockstep/comm/shared_memory/segment.h"

namespace lockstep::internal::inline comm {

/// What one call sends to one worker. `segment` and `bytes` live longer.
class RingSending {
 public:
  RingSending(const Segment& segment, int64_t from, int64_t to, MessageHead head, std::span<const std::byte> bytes);

  bool is_over() const { return is_head_sent_ && sent_ == bytes_.size(); }
  /// Writes what fits, at most one piece; false where nothing does.
  bool advance();

 private:
  const Segment* segment_;
  RingWriter ring_;
  int64_t to_;
  MessageHead head_;
  std::span<const std::byte> bytes_;
  bool is_head_sent_ = false;
  std::size_t sent_ = 0;
};

/// What one call receives from one worker: into the caller's memory, or into a record of any length. All that it is
/// given lives longer.
class RingReceiving {
 public:
  /// Into `place`, whose size the message must have.
  RingReceiving(const Segment& segment, int64_t from, int64_t to, uint64_t call, std::span<std::byte> place);
  /// Into `record`, which gets the message's size.
  RingReceiving(const Segment& segment, int64_t from, int64_t to, uint64_t call, std::string& record);

  bool is_over() const { return is_head_read_ && got_ == place_.size(); }
  /// Takes what is there, at most one piece; false where nothing is. `problem` gets what is wrong with it, if anything.
  bool advance(std::string& problem);

 private:
  const Segment* segment_;
  RingReader ring_;
  int64_t from_;
  int64_t to_;
  MessageHead::Kind kind_;
  uint64_t call_;
  std::span<std::byte> place_;
  std::string* record_;
  bool is_head_read_ = false;
  std::size_t got_ = 0;
};

}  // namespace lockstep::internal::comm
