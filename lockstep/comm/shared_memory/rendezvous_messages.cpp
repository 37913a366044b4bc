#include "lockstep/comm/shared_memory/rendezvous_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lockstep::internal {

namespace {

/// The first bytes of every message: other programs and other versions of this protocol are not understood.
constexpr std::string_view kMark = "LSlocal1";

void put(std::string& to, const void* from, std::size_t count) { to.append(static_cast<const char*>(from), count); }

bool take(std::string_view& from, void* to, std::size_t count) {
  if (from.size() < count) return false;
  std::memcpy(to, from.data(), count);
  from.remove_prefix(count);
  return true;
}

}  // namespace

std::string encode(const RendezvousMessage& message) {
  std::string bytes(kMark);
  bytes += static_cast<char>(message.kind);
  put(bytes, message.nonce.data(), message.nonce.size());
  put(bytes, message.proof.data(), message.proof.size());
  for (const int64_t number : {message.worker, message.num_workers}) put(bytes, &number, 8);
  bytes += message.text.substr(0, kLongestText);
  return bytes;
}

std::optional<RendezvousMessage> decode_rendezvous(std::string_view bytes) {
  if (bytes.size() > kLongestMessage || !bytes.starts_with(kMark)) return {};
  bytes.remove_prefix(kMark.size());
  RendezvousMessage message;
  uint8_t kind = 0;
  if (!take(bytes, &kind, 1) || kind < 1 || kind > static_cast<uint8_t>(RendezvousMessage::Kind::kTaken)) return {};
  message.kind = static_cast<RendezvousMessage::Kind>(kind);
  if (!take(bytes, message.nonce.data(), message.nonce.size())) return {};
  if (!take(bytes, message.proof.data(), message.proof.size())) return {};
  for (int64_t* const number : {&message.worker, &message.num_workers}) {
    if (!take(bytes, number, 8)) return {};
  }
  if (bytes.size() > kLongestText) return {};
  message.text = bytes;
  return message;
}

Proof proof_of(const std::string& secret, std::string_view who, const Nonce& of_worker, const Nonce& of_chief) {
  std::string text = fmt::format("lockstep local meeting, {}:", who);
  put(text, of_worker.data(), of_worker.size());
  put(text, of_chief.data(), of_chief.size());
  return hmac(secret, text);
}

std::string rendezvous_name(const std::string& job, const std::string& secret) {
  const Proof name = hmac(secret, fmt::format("lockstep meeting place, job:{}", job));
  std::string digits;
  for (std::size_t i = 0; i < 16; ++i) digits += fmt::format("{:02x}", name[i]);
  return digits;
}

}  // namespace lockstep::internal
