#include "lockstep/comm/join/authentication.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

Nonce fresh_nonce() {
  Nonce nonce = {};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw InternalError("LS-INTERNAL",
                        fmt::format("the system gave no random bytes (getrandom): {}", std::strerror(errno)),
                        "please report it");
  }
  return nonce;
}

Proof hmac(std::string_view key, std::string_view text) {
  Proof proof = {};
  unsigned int length = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, text.size(), proof.data(), &length)) {
    throw InternalError("LS-INTERNAL", "OpenSSL computed no HMAC", "look whether this OpenSSL allows SHA-256");
  }
  return proof;
}

bool equal(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace lockstep::internal::comm
