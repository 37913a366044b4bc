// Random numbers for one sample: a function of (seed, epoch, stage, sample), whatever thread makes it.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/dataset.h"
#include "lockstep/replica/random_streams.h"

namespace lockstep::internal {

/// While it lives, LibTorch's random operators of this thread draw from the sample's stream where they are given no
/// generator.
class SampleRandom {
 public:
  SampleRandom(const data::Pass& pass, int64_t sample);
  ~SampleRandom();
  SampleRandom(const SampleRandom&) = delete;
  SampleRandom& operator=(const SampleRandom&) = delete;

  /// The sample's generator.
  const at::Generator& generator() { return stream_->generator(); }

 private:
  std::unique_ptr<RandomStream> stream_;
  std::unique_ptr<RandomScope> scope_;
};

}  // namespace lockstep::internal
