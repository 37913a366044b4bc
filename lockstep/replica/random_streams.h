// Random numbers of a step: what LibTorch's operators draw from on a replica's thread, as a function of
// (seed, purpose, replica, step), whatever lane or thread runs the replica.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string_view>

namespace lockstep::internal {

/// What a stream is for; streams of different purposes never coincide.
enum class StreamPurpose : uint8_t {
  kReplica = 1,
  kShared,
  kMerge,
  kEvaluate,
  kEvaluateShared,
  kModule,
  kVariable,
  kEvaluateMerge
};

/// Names a stream. Fields beyond their stated width would coincide with others: replica 24 bits, step 32, draw 32.
struct StreamKey {
  uint64_t seed = 0;
  StreamPurpose purpose = StreamPurpose::kReplica;
  int64_t replica = 0;  // 0 for what all replicas share
  int64_t step = 0;
  int64_t draw = 0;  // several streams of one step: the how-manieth evaluation since the last step

  /// Of initial values.
  static StreamKey of_module(uint64_t seed, std::string_view name);
  static StreamKey of_variable(uint64_t seed, std::string_view name);
};

/// A CPU generator that is seeded when it is first needed after `restart`: a step that draws nothing pays nothing.
/// Its whole state comes from a counter-based generator keyed by the StreamKey, not from a 32-bit seed.
/// Belongs to one thread at a time.
class RandomStream {
 public:
  RandomStream();
  void restart(const StreamKey& key) {
    key_ = key;
    stale_ = true;
  }
  /// The generator; drawing from it moves this stream.
  const at::Generator& generator();

 private:
  StreamKey key_;
  bool stale_ = true;
  at::Generator generator_;
};

/// While it lives, every LibTorch operator of this thread that takes an optional generator and is given none draws
/// from `stream` (on CPU tensors). Scopes nest; `stream` outlives the scope.
class RandomScope {
 public:
  explicit RandomScope(RandomStream& stream);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  RandomStream* outer_;
  bool key_was_included_;
};

/// How many operators are intercepted; also makes sure that they are.
int intercept_random_operators();

}  // namespace lockstep::internal
