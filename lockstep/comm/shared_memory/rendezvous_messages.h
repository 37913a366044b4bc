// What workers of a host say to each other before they share memory. One datagram is one message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/join/authentication.h"

namespace lockstep::internal::inline comm {

struct RendezvousMessage {
  enum class Kind : uint8_t {
    kHello = 1,      // from a worker: nonce
    kChallenge = 2,  // from worker 0: nonce, proof
    kJoin = 3,       // from a worker: proof, worker, num_workers, text
    kWelcome = 4,    // from worker 0, when all are here; the memory's file comes with it
    kRefused = 5,    // from worker 0: text; `worker` is -1 where worker 0 gives up
    kTaken = 6,      // from worker 0: text; another process has joined as this worker
  };
  Kind kind = Kind::kHello;
  Nonce nonce = {};
  Proof proof = {};
  int64_t worker = 0;
  int64_t num_workers = 0;
  std::string text = {};  // what must match, or why the worker is refused
};

inline constexpr std::size_t kLongestText = 8192;
inline constexpr std::size_t kLongestMessage = kLongestText + 256;

/// A datagram, and back; nothing for bytes that encode() does not make. Texts are cut at kLongestText.
std::string encode(const RendezvousMessage& message);
std::optional<RendezvousMessage> decode_rendezvous(std::string_view bytes);

/// The proof of `who` ("worker 0", "worker") that it knows `secret`, for the two nonces of one connection.
Proof proof_of(const std::string& secret, std::string_view who, const Nonce& of_worker, const Nonce& of_chief);
/// The name of the socket at which worker 0 of a job waits, 32 hexadecimal digits. Without the secret it cannot be
/// guessed.
std::string rendezvous_name(const std::string& job, const std::string& secret);

}  // namespace lockstep::internal::comm
