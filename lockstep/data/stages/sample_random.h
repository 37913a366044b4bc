// Random numbers for one sample: a function of (seed, epoch, stage, sample), whatever thread makes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/data/dataset.h"
#include "lockstep/replica/random_streams.h"

namespace lockstep::internal::inline data {

/// While it lives, LibTorch's random operators of this thread draw from the stream of the present sample where they are
/// given no generator.
class SampleRandom {
 public:
  explicit SampleRandom(const lockstep::data::Pass& pass);
  ~SampleRandom();
  SampleRandom(const SampleRandom&) = delete;
  SampleRandom& operator=(const SampleRandom&) = delete;

  /// Makes `sample` the present one.
  void begin(int64_t sample);
  /// The sample's generator.
  const at::Generator& generator() { return stream_->generator(); }

 private:
  const uint64_t seed_;  // of the pass and stage
  std::unique_ptr<RandomStream> stream_;
  std::optional<RandomScope> scope_;
};

}  // namespace lockstep::internal::data
