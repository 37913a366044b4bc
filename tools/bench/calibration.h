// Measures what the machine can do by itself: the limits that a bench's figures are compared with.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/timing.h"

namespace lockstep::tools {

/// Bytes a second, reads and writes together, of arrays in memory that all threads share out. Timings are of a second's
/// inverse: p10 is the slowest tenth.
struct Bandwidth {
  int64_t bytes = 0;  // of each array
  int threads = 0;
  Timing copy;   // two arrays
  Timing triad;  // three
};

struct Calibration {
  std::string processor;
  int cores = 0;    // that the process may use
  int threads = 0;  // of "all" lanes, each pinned to a core of its own
  std::vector<Bandwidth> bandwidth;
  Timing ping_pong;     // seconds for a message of one word between two threads, there and back; 0 with one core
  Timing flops_of_one;  // a second, in products of 1024 x 1024 matrices
  Timing flops_of_all;

  /// Of all lanes, for work on so many bytes: that of the measured arrays which are together next in size, or, where
  /// the largest cache cannot hold the bytes, of the largest.
  double copy_rate(int64_t bytes) const { return of_working_set(bytes, 2).copy.median; }
  double triad_rate(int64_t bytes) const { return of_working_set(bytes, 3).triad.median; }

 private:
  const Bandwidth& of_working_set(int64_t bytes, int arrays) const;
};

/// Measures for some seconds, on `lanes` threads or as many as there are cores, whichever is less.
Calibration calibrate(int lanes);

/// The lines of a table.
std::vector<std::pair<std::string, std::string>> table_of(const Calibration& calibration);
nlohmann::ordered_json json_of(const Calibration& calibration);

/// The processor's name, as the system gives it.
std::string processor_name();
/// Bytes of the largest cache; 32 MiB where the system does not say.
int64_t largest_cache();
/// Bytes of physical memory.
int64_t physical_memory();

}  // namespace lockstep::tools
