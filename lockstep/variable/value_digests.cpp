#include "lockstep/variable/value_digests.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/comm/equal_texts.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline variable {

namespace {

/// Of dtype and sizes.
uint64_t shape_digest_of(const at::Tensor& value, uint64_t seed) {
  return Digest(seed).with(value.scalar_type()).with_all(value.sizes()).value();
}

uint64_t digest_of(const at::Tensor& value) {
  const at::Tensor bits = plain_and_contiguous(value);
  const uint64_t shape = shape_digest_of(bits, 0);
  return bits.nbytes() == 0 ? shape : XXH3_64bits_withSeed(host_bytes(bits).data(), bits.nbytes(), shape);
}

uint64_t hash_of(const std::string& name) { return Digest().with(name).value(); }

/// The digests that one worker has sent, by the hash of the name.
std::map<uint64_t, uint64_t> sent_by(const Proposal& proposal, std::size_t worker) {
  MessageReader reader(proposal.data, static_cast<int64_t>(worker), "digests of its values");
  std::map<uint64_t, uint64_t> digests;
  while (!reader.at_end()) {
    const auto name = reader.get<uint64_t>();
    digests[name] = reader.get<uint64_t>();
  }
  return digests;
}

/// The parts of [begin, end) that are compared at once.
std::vector<std::pair<int64_t, int64_t>> parts_of(int64_t begin, int64_t end) {
  constexpr int64_t kMost = 64;
  const int64_t count = std::min(kMost, end - begin);
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (int64_t i = 0; i < count; ++i) {
    parts.emplace_back(begin + (end - begin) * i / count, begin + (end - begin) * (i + 1) / count);
  }
  return parts;
}

/// A digest of each part's bits.
std::string digests_of_parts(const at::Tensor& bits, int64_t begin, int64_t end) {
  std::string bytes;
  const auto size = static_cast<int64_t>(bits.element_size());
  for (const auto& [first, last] : parts_of(begin, end)) {
    ByteWriter(bytes).put(
        uint64_t{XXH3_64bits(host_bytes(bits).data() + first * size, static_cast<std::size_t>((last - first) * size))});
  }
  return bytes;
}

std::string text_of_element(const at::Tensor& bits, int64_t at) {
  const at::Tensor element = bits.reshape({-1})[at];
  if (element.is_complex()) {
    const auto number = element.item().toComplexDouble();
    return fmt::format("{}{:+}i", number.real(), number.imag());
  }
  if (element.scalar_type() == at::kFloat) return fmt::to_string(element.item<float>());
  return element.is_floating_point() ? fmt::to_string(element.item<double>()) : fmt::to_string(element.item<int64_t>());
}

/// "[3, 5]" of the element with this number, in rows.
std::string place_text(at::IntArrayRef sizes, int64_t at) {
  std::vector<int64_t> place(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0; at /= sizes[d]) place[d] = at % sizes[d];
  return fmt::format("[{}]", fmt::join(place, ", "));
}

}  // namespace

std::string ValueDigests::first_difference(const at::Tensor& value, int64_t a, int64_t b) const {
  const at::Tensor bits = value.defined() ? plain_and_contiguous(value) : value;
  const auto tell = [&](const std::string& own) {
    std::vector<std::string> said;
    const auto fill_in = [&](Proposal& mine) { mine.data = own; };
    for (Proposal& one :
         agree_on_call(group_.rounds(), {.call = "a value that differs", .step = group_.step()}, fill_in)) {
      said.push_back(std::move(one.data));
    }
    return said;
  };
  const auto at_worker = [](const std::vector<std::string>& said, int64_t worker) -> const std::string& {
    return said[static_cast<std::size_t>(worker)];
  };
  // Every worker follows what workers a and b have said, also one that has no such variable.
  const std::vector<std::string> shapes = tell(bits.defined() ? shape_text(bits) : "not there");
  if (at_worker(shapes, a) != at_worker(shapes, b)) return "it is " + text_of_sides(shapes, "on");
  const std::vector<std::string> lengths = tell(bits.defined() ? fmt::to_string(bits.numel()) : "0");
  int64_t begin = 0;
  int64_t end = std::stoll(at_worker(lengths, a));
  while (end - begin > 1) {
    const bool has_them = bits.defined() && bits.numel() >= end;
    const std::vector<std::string> said = tell(has_them ? digests_of_parts(bits, begin, end) : "");
    const auto parts = parts_of(begin, end);
    const std::string& one = at_worker(said, a);
    const std::string& other = at_worker(said, b);
    const auto place = static_cast<std::size_t>(
                           std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first - one.begin()) /
                       sizeof(uint64_t);
    if (place >= parts.size()) return "they have changed since";
    std::tie(begin, end) = parts[place];
  }
  std::string own = "not there";
  if (bits.defined() && begin < bits.numel()) {
    own = text_of_element(bits, begin);
    if (bits.dim() > 0) own += fmt::format(" at {}", place_text(bits.sizes(), begin));
  }
  return "it is " + text_of_sides(tell(own), "on");
}

ValueDigests::ValueDigests(const ReplicaGroup& group) : group_(group), is_wanted_(group.num_workers() > 1) {}

void ValueDigests::add(const std::string& name, const at::Tensor& value) {
  if (!is_wanted_) return;
  names_.push_back(name);
  digests_.push_back(digest_of(value));
  values_.push_back(value);
  names_and_shapes_ = shape_digest_of(value, names_and_shapes_ ^ hash_of(name));
}

void ValueDigests::fill_in(Proposal& mine, bool names_must_match) const {
  mine.data.clear();
  ByteWriter to(mine.data);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    to.put(hash_of(names_[i]));
    to.put(digests_[i]);
  }
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
    for (const auto& [name, digest] : sent_by(all[w], w)) {
      const auto [expected, is_new] = first.emplace(name, First{digest, w});
      if (is_new || expected->second.digest == digest) continue;
      std::string text = "a value";
      at::Tensor value;
      for (std::size_t i = 0; i < names_.size(); ++i) {
        if (hash_of(names_[i]) != name) continue;
        text = fmt::format("'{}'", names_[i]);
        value = values_[i];
      }
      const auto other = static_cast<int64_t>(w);
      const auto one = static_cast<int64_t>(expected->second.worker);
      throw DivergenceError("LS-DIVERGED",
                            fmt::format("{}: {} has other bits on worker {} than on worker {}: {}", call, text, other,
                                        one, first_difference(value, one, other)),
                            "give all workers the same value: let it depend on the strategy's seed and on nothing of "
                            "one worker, or take one worker's with on_chief() or update_from()");
    }
  }
}

}  // namespace lockstep::internal::variable
