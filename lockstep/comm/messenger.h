// What a plug-in such as liblockstep_ucx.so does for the library: it moves messages between workers, through a library
// with which Lockstep itself is not linked.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::internal::inline comm {

/// A message and its memory, which belong to the messenger.
struct Message {
  enum class State : uint8_t { kIdle, kMoving, kDone, kFailed };

  std::span<std::byte> memory = {};
  std::size_t size = 0;  // the bytes to send, or those that have come
  State state = State::kIdle;
  std::string failure = {};  // of kFailed
};

struct MessengerSetup {
  int64_t num_workers = 0;
  int64_t worker_index = 0;
  /// Of this worker's own address, such as "eth0".
  std::string network_interface = {};
};

/// Moves messages between this worker and the others. Those from one worker to another one arrive in their order. One
/// thread at a time calls it, and nothing but address() and connect() may wait for long. A plug-in uses nothing of the
/// library, and where it fails it throws std::runtime_error or gives a message the state kFailed.
class Messenger {
 public:
  virtual ~Messenger() = default;

  /// What moves the bytes and who may read them on their way, as World::describe().
  virtual std::string describe() const = 0;

  /// Whether address() may be called. To be called on all workers, when all have met, until it holds on each of them: a
  /// worker may need the other ones to call it, too. Waits for some milliseconds at most.
  virtual bool is_ready() { return true; }
  /// What the others must know to reach this worker. Called once.
  virtual std::string address() = 0;
  /// Begins to connect with the others, whose addresses are given by worker. Called once, before the first message.
  virtual void connect(const std::vector<std::string>& addresses) = 0;
  /// Goes on to connect. The workers with which this one is not connected yet. To be called on all workers until there
  /// are none on any: until then flush() may need the other workers to call something, too.
  virtual std::vector<int64_t> unconnected() = 0;

  /// A message with so much memory, which stays until the messenger is destroyed. Where something may still be written
  /// there then, because a worker has died, it stays for ever.
  virtual Message& new_message(std::size_t bytes) = 0;
  /// Begins to send the first `size` bytes of the message, which is not moving. It may be done at once.
  virtual void send(int64_t worker, Message& message) = 0;
  /// Begins to receive the next message of this worker. One that is longer than the memory fails.
  virtual void receive(int64_t worker, Message& message) = 0;
  /// Moves what can be moved, and changes the states of messages.
  virtual void progress() = 0;
  /// Whether all that was sent to this worker arrives though nobody calls progress() here. To be called until it does.
  virtual bool flush(int64_t worker) = 0;

  struct Sleep {
    int file = -1;                                                       // becomes readable; -1: there is none
    std::chrono::nanoseconds longest = std::chrono::nanoseconds::max();  // 0: there is something to do
  };
  /// How the thread may sleep now without missing anything for longer than `longest`.
  virtual Sleep sleep() = 0;

  /// The last call. `has_failed` says that a call of the World has failed, and that other workers may be gone.
  virtual void end(bool has_failed) = 0;
};

/// The one function of a plug-in. Its name changes with this header, so that no plug-in of another version is used.
inline constexpr const char* kMessengerFunction = "lockstep_messenger_2";
using MessengerFunction = Messenger*(const MessengerSetup&);

}  // namespace lockstep::internal::comm
