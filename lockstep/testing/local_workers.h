// For users' tests of training code on several workers, under any test framework: workers that are threads of the test,
// and a test whether a program computes on them what it computes on one. docs/testing.md shows it in use.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/strategy/strategy.h"
#include "lockstep/testing/local_replicas.h"

namespace lockstep::testing {

struct LocalWorkersOptions {
  int64_t workers = 2;
  int64_t replicas = 4;  // of all workers; at least `workers` times `lanes`
  int lanes = 1;         // of each worker
  uint64_t seed = 0;
  std::chrono::milliseconds patience = std::chrono::seconds(30);  // of a worker that waits for another one
  /// By worker, a number that the workers of one host share; empty: all are on one host. It decides no bit.
  std::vector<int64_t> hosts = {};
};

/// Workers that are threads of the test, without a network. Each has a strategy that computes what a
/// MultiWorkerMirroredStrategy computes, in every bit, but pins no core.
class LocalWorkers {
 public:
  /// Throws a UsageError for fewer than one of anything, and for hosts of another number of workers.
  explicit LocalWorkers(LocalWorkersOptions options = {});

  /// Calls `body(strategy)` on every worker at the same time, each on a thread of its own, and returns when all have
  /// returned. May be called more than once; each call makes new strategies. Where workers throw, throws the error of
  /// the lowest worker whose error is its own, and otherwise of the lowest one: a PeerError only says what happened to
  /// another worker.
  ///
  /// The threads share what is one for each process: the environment, LibTorch's global generator, static variables.
  void run(const std::function<void(Strategy& strategy)>& body) const;

 private:
  const LocalWorkersOptions options_;
};

struct CompareWorkersOptions {
  int64_t replicas = 6;  // with 6, the workers' blocks of 4 workers differ in size
  /// How many workers to try beside one, each at most `replicas`. Empty: 2, 3 and 4, as far as there are replicas.
  std::vector<int64_t> workers = {};
  uint64_t seed = 0;
};

/// Runs `program` on one worker, and then on several numbers of workers, with the same number of replicas. Returns
/// where all variables have the same bits after each step, on every worker; of an on-read variable, each worker's
/// components.
///
/// Otherwise throws a DivergenceError that names the first step that differs, the worker, the first variable, and an
/// element with both values. What the program throws passes through, as LocalWorkers::run() says.
///
/// Everything that `program` computes outside of steps it computes on each worker. So it must not draw from LibTorch's
/// global generator, which the threads of the test share: make samples before, or from a generator of the program's own
/// with a fixed seed.
void expect_same_as_one_worker(const TrainingProgram& program, const CompareWorkersOptions& options = {});

}  // namespace lockstep::testing
