#include "lockstep/variable/value_digests.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <map>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

namespace {

/// Of dtype and sizes.
uint64_t shape_digest_of(const at::Tensor& value, uint64_t seed) {
  const auto type = static_cast<int64_t>(value.scalar_type());
  uint64_t digest = XXH3_64bits_withSeed(&type, sizeof type, seed);
  for (const int64_t size : value.sizes()) digest = XXH3_64bits_withSeed(&size, sizeof size, digest);
  return digest;
}

uint64_t digest_of(const at::Tensor& value) {
  const at::Tensor bits = plain_and_contiguous(value);
  const uint64_t shape = shape_digest_of(bits, 0);
  return bits.nbytes() == 0 ? shape : XXH3_64bits_withSeed(address_of(bits), bits.nbytes(), shape);
}

uint64_t hash_of(const std::string& name) { return XXH3_64bits(name.data(), name.size()); }

/// The digests that one worker has sent, by the hash of the name.
std::map<uint64_t, uint64_t> sent_by(const Proposal& proposal) {
  std::vector<uint64_t> words(proposal.data.size() / sizeof(uint64_t));
  if (!words.empty()) std::memcpy(words.data(), proposal.data.data(), words.size() * sizeof(uint64_t));
  std::map<uint64_t, uint64_t> digests;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) digests[words[i]] = words[i + 1];
  return digests;
}

}  // namespace

ValueDigests::ValueDigests(const ReplicaGroup& group) : is_wanted_(group.num_workers() > 1) {}

void ValueDigests::add(const std::string& name, const at::Tensor& value) {
  if (!is_wanted_) return;
  names_.push_back(name);
  digests_.push_back(digest_of(value));
  names_and_shapes_ = shape_digest_of(value, names_and_shapes_ ^ hash_of(name));
}

void ValueDigests::fill_in(Proposal& mine, bool names_must_match) const {
  std::vector<uint64_t> words;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    words.push_back(hash_of(names_[i]));
    words.push_back(digests_[i]);
  }
  mine.data.assign(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
  if (names_must_match) mine.signature = names_and_shapes_;
}

void ValueDigests::require_equal(std::span<const Proposal> all, const char* call) const {
  if (!is_wanted_) return;
  struct First {
    uint64_t digest;
    std::size_t worker;
  };
  std::map<uint64_t, First> first;  // the first worker that has a name, and its digest
  // Every worker reads the same proposals in the same order, so every worker finds the same difference first.
  for (std::size_t w = 0; w < all.size(); ++w) {
    for (const auto& [name, digest] : sent_by(all[w])) {
      const auto [expected, is_new] = first.emplace(name, First{digest, w});
      if (is_new || expected->second.digest == digest) continue;
      std::string text = "a value";
      for (const std::string& one : names_) {
        if (hash_of(one) == name) text = fmt::format("'{}'", one);
      }
      throw DivergenceError(
          "LS-DIVERGED",
          fmt::format("{}: {} has other bits on worker {} than on worker {}", call, text, w, expected->second.worker),
          "give all workers the same value: let it depend on the strategy's seed and on nothing of "
          "one worker, or take one worker's with on_chief() or update_from()");
    }
  }
}

}  // namespace lockstep::internal
