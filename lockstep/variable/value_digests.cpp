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

uint64_t digest_of(const at::Tensor& value) {
  const at::Tensor bits = plain_and_contiguous(value);
  uint64_t seed = static_cast<uint64_t>(bits.scalar_type());
  for (const int64_t size : bits.sizes()) seed = XXH3_64bits_withSeed(&size, sizeof size, seed);
  return bits.nbytes() == 0 ? seed : XXH3_64bits_withSeed(address_of(bits), bits.nbytes(), seed);
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

ValueDigests::ValueDigests(const ReplicaGroup& group)
    : is_wanted_(group.num_workers() > 1), worker_(group.rounds().worker_index()) {}

void ValueDigests::add(const std::string& name, const at::Tensor& value) {
  if (!is_wanted_) return;
  names_.push_back(name);
  digests_.push_back(digest_of(value));
}

void ValueDigests::fill_in(Proposal& mine, bool names_must_match) const {
  std::vector<uint64_t> words;
  uint64_t all_names = 0;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    words.push_back(hash_of(names_[i]));
    words.push_back(digests_[i]);
    all_names = XXH3_64bits_withSeed(&words[2 * i], sizeof(uint64_t), all_names);
  }
  mine.data.assign(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
  if (names_must_match) mine.signature = all_names;
}

void ValueDigests::require_equal(std::span<const Proposal> all, const char* call) const {
  if (!is_wanted_) return;
  const auto first = sent_by(all.front());
  // Every worker reads the same proposals in the same order, so every worker finds the same difference first.
  for (std::size_t w = 1; w < all.size(); ++w) {
    for (const auto& [name, digest] : sent_by(all[w])) {
      const auto expected = first.find(name);
      if (expected == first.end() || expected->second == digest) continue;
      std::string text = "a value";
      for (const std::string& one : names_) {
        if (hash_of(one) == name) text = fmt::format("'{}'", one);
      }
      throw DivergenceError("LS-DIVERGED",
                            fmt::format("{}: {} has other bits on worker {} than on worker 0", call, text, w),
                            "give all workers the same value: let it depend on the strategy's seed and on nothing of "
                            "one worker, or take one worker's with on_chief() or update_from()");
    }
  }
}

}  // namespace lockstep::internal
