// What stands in front of the bytes that one worker sends another in one call of a World.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::internal::inline comm {

/// Bytes of a record; a receiver has no memory for it before it comes.
inline constexpr uint64_t kLongestRecord = uint64_t{1} << 26;

struct MessageHead {
  enum class Kind : uint64_t {
    kRecord = 1,  // of agree()
    kBytes = 2,   // of exchange()
    kTaken = 3,   // the sender has all that it was sent in the call; nothing follows
    kPut = 4,     // of a window; between the messages of calls. Its offset follows, eight bytes, and then the bytes
  };
  Kind kind = Kind::kRecord;
  uint64_t call = 0;  // which call of the World it belongs to; of kPut: the window
  uint64_t size = 0;  // of the bytes that follow
};

/// What a worker expects from another one in a call.
struct ExpectedMessage {
  MessageHead::Kind kind = MessageHead::Kind::kRecord;
  uint64_t call = 0;
  std::optional<uint64_t> size = {};  // of kBytes
  uint64_t longest = kLongestRecord;  // of kRecord
};

/// Why `head`, which worker `from` sent to worker `to`, is not what that one expects; empty where it is.
std::string objection_to(const MessageHead& head, const ExpectedMessage& expected, int64_t from, int64_t to);

/// A UsageError (LS-COUNT) where a record of so many bytes cannot be sent.
void require_record_size(uint64_t bytes);

}  // namespace lockstep::internal::comm
