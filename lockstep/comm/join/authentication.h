// How a worker proves that it knows its job's secret.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace lockstep::internal::inline comm {

/// Sixteen random bytes, so that a proof cannot be used twice.
using Nonce = std::array<unsigned char, 16>;
/// An HMAC-SHA256.
using Proof = std::array<unsigned char, 32>;

/// An InternalError where the system gives no random bytes.
Nonce fresh_nonce();
/// The HMAC-SHA256 of `text` under `key`.
Proof hmac(std::string_view key, std::string_view text);
/// Compares in a time that does not depend on the contents.
bool equal(const Proof& a, const Proof& b);

}  // namespace lockstep::internal::comm
