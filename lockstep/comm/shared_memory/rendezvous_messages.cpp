#include "lockstep/comm/shared_memory/rendezvous_messages.h"

#include <fmt/format.h>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline comm {

namespace {

/// The first bytes of every message: other programs and other versions of this protocol are not understood.
constexpr std::string_view kMark = "LSlocal1";

}  // namespace

std::string encode(const RendezvousMessage& message) {
  std::string bytes(kMark);
  ByteWriter to(bytes);
  to.put(message.kind);
  to.put(message.nonce);
  to.put(message.proof);
  to.put(message.worker);
  to.put(message.num_workers);
  bytes += std::string_view(message.text).substr(0, kLongestText);
  return bytes;
}

std::optional<RendezvousMessage> decode_rendezvous(std::string_view bytes) {
  if (bytes.size() > kLongestMessage || !bytes.starts_with(kMark)) return {};
  ByteReader reader(bytes.substr(kMark.size()));
  RendezvousMessage message;
  uint8_t kind = 0;
  if (!reader.get(kind) || kind < 1 || kind > static_cast<uint8_t>(RendezvousMessage::Kind::kTaken)) return {};
  message.kind = static_cast<RendezvousMessage::Kind>(kind);
  const bool is_whole = reader.get(message.nonce) && reader.get(message.proof) && reader.get(message.worker) &&
                        reader.get(message.num_workers);
  if (!is_whole || reader.left().size() > kLongestText) return {};
  message.text = reader.left();
  return message;
}

Proof proof_of(const std::string& secret, std::string_view who, const Nonce& of_worker, const Nonce& of_chief) {
  std::string text = fmt::format("lockstep local meeting, {}:", who);
  ByteWriter(text).put(of_worker);
  ByteWriter(text).put(of_chief);
  return hmac(secret, text);
}

std::string rendezvous_name(const std::string& job, const std::string& secret) {
  const Proof name = hmac(secret, fmt::format("lockstep meeting place, job:{}", job));
  std::string digits;
  for (std::size_t i = 0; i < 16; ++i) digits += fmt::format("{:02x}", name[i]);
  return digits;
}

}  // namespace lockstep::internal::comm
