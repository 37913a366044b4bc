// What workers of a host say to each other before they share memory. One datagram is one message.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::internal {

/// Sixteen random bytes, so that a proof cannot be used twice.
using Nonce = std::array<unsigned char, 16>;
/// An HMAC-SHA256.
using Proof = std::array<unsigned char, 32>;

struct LocalMessage {
  enum class Kind : uint8_t {
    kHello = 1,      // from a worker: nonce
    kChallenge = 2,  // from worker 0: nonce, proof
    kJoin = 3,       // from a worker: proof, worker, num_workers, text
    kWelcome = 4,    // from worker 0, when all are here; the memory's file comes with it
    kRefused = 5,    // from worker 0: text; `worker` is -1 where worker 0 gives up
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
std::string encode(const LocalMessage& message);
std::optional<LocalMessage> decode_local(std::string_view bytes);

Nonce fresh_nonce();
/// The proof of `who` ("worker 0", "worker") that it knows `secret`, for the two nonces of one connection.
Proof proof_of(const std::string& secret, std::string_view who, const Nonce& of_worker, const Nonce& of_chief);
/// Compares in a time that does not depend on the contents.
bool equal(const Proof& a, const Proof& b);
/// The name of the socket at which worker 0 of a job waits, 32 hexadecimal digits. Without the secret it cannot be
/// guessed.
std::string meeting_place(const std::string& job, const std::string& secret);

}  // namespace lockstep::internal
