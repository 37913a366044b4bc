// `lockstep bench`: measures this machine and how well Lockstep uses it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/models/models.h"

namespace lockstep::tools {

/// What all benches take.
struct BenchOptions {
  std::vector<std::string> devices;
  int64_t replicas = 0;
  int64_t threads_per_replica = 1;
  int64_t blocks = 15;
  double block_seconds = 0.3;
  bool no_calibration = false;
  std::string json;
};

/// Whole training steps on made data.
struct BenchTrainOptions : BenchOptions {
  std::string strategy = "mirrored";
  std::string engine;          // of multi-worker; empty: auto
  std::string wire = "exact";  // the same
  ModelOptions model;
  int64_t batch = 32;  // samples of each replica
  std::string optimizer = "adamw";
  std::string dump;  // a folder to write what a rival needs to compute the same
};

/// ReplicaContext::all_reduce of plain tensors.
struct BenchAllReduceOptions : BenchOptions {
  std::vector<uint64_t> sizes;  // bytes of each replica; empty: 8 B to 256 MiB
};

/// Optimizer::step on gradients that are ready.
struct BenchStepOptions : BenchOptions {
  std::string shapes;  // "4096x4096*4,1000": one of these three
  std::string tensors;
  ModelOptions model = {.name = {}};
  /// Of the linear layers whose backwards compute the gradients of matrices; 0: all gradients are given.
  int64_t samples = 0;
  std::string optimizer = "adamw";
};

/// Bytes between workers, each a process of this machine.
struct BenchWireOptions {
  int64_t workers = 2;
  std::string engine = "shared-memory";
  int64_t hosts = 1;                                                  // the workers say that they are on so many hosts
  bool pair = false;                                                  // only workers 0 and 1 send bytes
  std::vector<uint64_t> sizes = {0, 4096, 65536, 1 << 20, 64 << 20};  // bytes from each worker to each other one
  int64_t blocks = 15;
  double block_seconds = 0.3;
  std::string json;
};

/// Each prints a table, and writes the report where one is asked for; gives the exit code.
int bench_train(const BenchTrainOptions& options);
int bench_all_reduce(const BenchAllReduceOptions& options);
int bench_step(const BenchStepOptions& options);
int bench_wire(const BenchWireOptions& options);

}  // namespace lockstep::tools
