// How many random moments a test of faults tries: a few in the suite, many by scripts/test-faults. Where there are
// many, some tests also take engines and numbers of workers that the suite leaves out.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace lockstep::testing {

/// What LOCKSTEP_FAULT_SEEDS says, at least 1; without it `in_the_suite`.
inline int64_t fault_seeds(int64_t in_the_suite = 1) {
  const char* const asked = std::getenv("LOCKSTEP_FAULT_SEEDS");
  if (!asked) return in_the_suite;
  const int64_t seeds = std::stoll(asked);
  if (seeds < 1) throw std::invalid_argument(std::string("LOCKSTEP_FAULT_SEEDS is ") + asked + ", less than 1");
  return seeds;
}

/// Whether LOCKSTEP_FAULT_SEEDS is set: then all engines and numbers of workers are tried.
inline bool all_engines() { return std::getenv("LOCKSTEP_FAULT_SEEDS") != nullptr; }

}  // namespace lockstep::testing
