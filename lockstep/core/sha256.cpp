#include "lockstep/core/sha256.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <bit>
#include <memory>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "elements would have to be turned round");

std::string sha256_of(const std::vector<std::pair<std::string, at::Tensor>>& named) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  bool done = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  const auto add = [&](const void* bytes, std::size_t count) {
    done = done && EVP_DigestUpdate(context.get(), bytes, count) == 1;
  };
  for (const auto& [name, tensor] : named) {
    const at::Tensor rows = tensor.detach().cpu().contiguous();
    const std::string head = fmt::format("{}{}{}{}[{}]{}", name, '\0', c10::toString(rows.scalar_type()), '\0',
                                         fmt::join(rows.sizes(), ", "), '\0');
    add(head.data(), head.size());
    add(internal::host_bytes(rows).data(), internal::host_bytes(rows).size());
  }
  if (!done || EVP_DigestFinal_ex(context.get(), digest, &length) != 1) {
    throw InternalError("LS-INTERNAL", "OpenSSL refused to compute a SHA-256",
                        "look at the system's OpenSSL configuration");
  }
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace lockstep
