// Elements of several streams in turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/stream.h"

namespace lockstep::internal::inline data {

enum class InterleavedIds {
  kKept,      // they differ already
  kNumbered,  // an id i of stream k of n becomes n * i + k
};

/// Reads `options.cycle_length` of the streams in turn, in their order. Those with kKept, which are files, are read in
/// another order in each epoch where StreamPass::shuffle says so. Where there are as many streams as shards, a shard
/// has some of the streams whole.
Stream interleaved(std::vector<std::shared_ptr<const lockstep::data::StreamSource>> streams,
                   const lockstep::data::InterleaveOptions& options, InterleavedIds ids, const std::string& name);

}  // namespace lockstep::internal::data
