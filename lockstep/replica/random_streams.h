// Random streams of a step: what LibTorch's operators draw from on a replica's thread, as a function of (seed, purpose,
// replica, step), whatever lane or thread runs the replica.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string_view>

#include "lockstep/intercept/scopes.h"

namespace lockstep::internal::inline replica {

/// What a stream is for; streams of different purposes never coincide.
enum class StreamPurpose : uint8_t {
  kReplica = 1,
  kShared,
  kMerge,
  kEvaluate,
  kEvaluateShared,
  kModule,
  kVariable,
  kEvaluateMerge,
  kSample  // random work in the pipeline of a data set
};

/// Names a stream. Replica has 24 bits, step 32 and draw 32: larger values would name other streams.
struct StreamKey {
  uint64_t seed = 0;
  StreamPurpose purpose = StreamPurpose::kReplica;
  int64_t replica = 0;  // 0 for what all replicas share
  int64_t step = 0;
  int64_t draw = 0;  // tells streams of one step: the number of evaluations since the last step

  /// The stream for the initial values of the module or variable `name`.
  static StreamKey of_module(uint64_t seed, std::string_view name);
  static StreamKey of_variable(uint64_t seed, std::string_view name);
};

/// A CPU generator that is seeded when it is first needed after `restart`: a step that draws nothing pays nothing. One
/// thread at a time uses it.
/// Invariant: its whole state is a function of the StreamKey and of the draws since `restart`. It comes from a
/// counter-based generator, not from a 32-bit seed.
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
  const InterceptedScope intercepted_;  // first: it may throw
  RandomStream* const outer_;
};

/// Puts LibTorch's default generator back at its end, if the program has seeded it meanwhile (torch::manual_seed): what
/// a factory does leaves the caller's generator as it was. What other threads draw from it stays drawn, unless it was
/// seeded.
class DefaultGeneratorGuard {
 public:
  DefaultGeneratorGuard();
  ~DefaultGeneratorGuard();
  DefaultGeneratorGuard(const DefaultGeneratorGuard&) = delete;
  DefaultGeneratorGuard& operator=(const DefaultGeneratorGuard&) = delete;

 private:
  const uint64_t seed_;
  const at::Tensor before_;
};

/// Finds out whether LibTorch's default generator is seeded while this lives, also with the seed that it has. Any
/// thread. What the generator draws stays as it is.
class DefaultGeneratorWatch {
 public:
  DefaultGeneratorWatch();
  ~DefaultGeneratorWatch();
  DefaultGeneratorWatch(const DefaultGeneratorWatch&) = delete;
  DefaultGeneratorWatch& operator=(const DefaultGeneratorWatch&) = delete;
  bool was_seeded() const;

 private:
  uint64_t seed_ = 0;
  bool is_marked_ = false;
};

/// Makes sure that LibTorch's random operators are intercepted, and returns how many are. Any thread may call.
int intercept_random_operators();

}  // namespace lockstep::internal::replica
