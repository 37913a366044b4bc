// How many copies a mirrored variable has: docs/variables.md.
#pragma once

namespace lockstep {

/// The choice changes memory and speed, and no bit of any result.
enum class Copies {
  kPerMemory,   // one for all replicas that share a memory
  kPerReplica,  // one for each replica
};

}  // namespace lockstep
