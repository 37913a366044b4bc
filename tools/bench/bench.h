// `lockstep bench`: measures this machine and what Lockstep makes of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/models/models.h"

namespace lockstep::tools {

/// Whole training steps on made data.
struct BenchTrainOptions {
  ModelOptions model;
  int64_t batch = 32;  // samples of each replica
  std::vector<std::string> devices;
  int64_t replicas = 0;
  int64_t threads_per_replica = 1;
  std::string optimizer = "adamw";
  int64_t blocks = 15;
  double block_seconds = 0.3;
  std::string json;
};

/// Prints a table, and writes the report where one is asked for; gives the exit code.
int bench_train(const BenchTrainOptions& options);

}  // namespace lockstep::tools
