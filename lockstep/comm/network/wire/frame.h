// What workers tell each other beside their data: a kind, numbers and a text in each frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline comm {

/// How far a worker is with the calls of its World, which have numbers from 1.
struct Calls {
  uint64_t taken = 0;     // it has all that the others sent it in these calls
  uint64_t returned = 0;  // it knows that all workers have taken these calls, and has returned from them
  uint64_t begun = 0;     // it has come to these calls

  bool operator==(const Calls&) const = default;
};

struct Frame {
  enum class Kind : uint8_t {
    // While workers join. A connection begins with kJoin or kAttach.
    kJoin = 1,      // to worker 0: a Joiner
    kRefused = 2,   // from worker 0: a Refusal as number, and why
    kMembers = 3,   // when all are here: all Members, from worker 0 or a worker to which it has given them
    kFailed = 4,    // to worker 0: why this worker cannot be connected with the others
    kReady = 5,     // to worker 0: this worker is connected with all others
    kGo = 6,        // from worker 0: all are
    kAttach = 7,    // between two workers, on a new connection: an Attachment
    kAttached = 8,  // the answer
    kProbe = 9,     // from someone who only looks whether this worker can be reached
    kProbed = 10,   // the answer: who is here
    kAllHere = 11,  // from worker 0: worker `about` will send the Members, whose session this is

    // As long as the run lasts.
    kHeartbeat = 16,  // calls: the worker's; number: its phase; about: for whom it waits in a call, or -1
    kEnding = 17,     // to the arbiter: the run must end, and why
    kFreeze = 18,     // from the arbiter: take no more calls; why
    kFrozen = 19,     // the answer: the worker's calls
    kEnd = 20,        // calls.taken: so many calls count; why the run has ended; number: the arbiter that says so
    kLeft = 21,       // the worker takes part no longer: its calls, and why
    kAsk = 22,        // from a worker that wants a heartbeat now
    kSilent = 23,     // the sender has not heard its neighbour `about` for too long; calls: the last that it heard
  };
  Kind kind = Kind::kHeartbeat;
  uint64_t number = 0;
  Calls calls = {};
  int64_t about = -1;  // a worker
  std::string text = {};

  bool operator==(const Frame&) const = default;
};

/// Longer frames are refused before there is memory for them.
inline constexpr std::size_t kLongestFrame = std::size_t{1} << 20;
/// Longer texts of a reason are cut.
inline constexpr std::size_t kLongestReason = 4000;

/// The bytes of a frame, with their number in front.
std::string encode(const Frame& frame);

/// Makes frames of the bytes of a stream as they come.
class FrameReader {
 public:
  void add(std::string_view bytes) { bytes_.append(bytes); }
  /// The next whole frame; nothing where it has not come yet, or where is_malformed().
  std::optional<Frame> next();
  /// Whether bytes came that encode() does not make.
  bool is_malformed() const { return is_malformed_; }

 private:
  std::string bytes_;
  bool is_malformed_ = false;
};

}  // namespace lockstep::internal::comm
