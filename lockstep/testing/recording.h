// The values of all variables of a training program after each step.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/testing/local_replicas.h"
#include "lockstep/variable/variable.h"

namespace lockstep::internal::inline testing {

struct RecordedVariable {
  std::string name;
  bool on_write = true;
  VariableAggregation aggregation = VariableAggregation::kNone;
  at::Tensor value = {};                    // undefined where it is on-read without aggregation
  std::vector<at::Tensor> components = {};  // of an on-read variable
};

/// One call of observe().
struct Moment {
  int64_t steps = 0;  // completed runs of the strategy
  std::vector<RecordedVariable> variables;
};

struct Recording {
  std::string who;  // "one device", "6 replicas on 2 lanes"
  std::vector<Moment> moments;
};

/// While it lives, LibTorch's global generator goes on from where it stands in a new process. Of one thread at a time.
class GeneratorOfNewProcess {
 public:
  GeneratorOfNewProcess();
  ~GeneratorOfNewProcess();
  GeneratorOfNewProcess(const GeneratorOfNewProcess&) = delete;
  GeneratorOfNewProcess& operator=(const GeneratorOfNewProcess&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

/// Runs the program, with the generator of a new process. A UsageError unless it calls observe() before the first step,
/// and after a step.
Recording record(const lockstep::testing::TrainingProgram& program, Strategy& strategy, std::string who);
/// The same with the global generator as it is: for workers that are threads and share it.
Recording record_with_generator(const lockstep::testing::TrainingProgram& program, Strategy& strategy, std::string who);

/// The recording of one worker, with the components of the replicas that worker `worker` of `workers` has.
Recording part_of(Recording whole, int64_t replicas, int64_t workers, int64_t worker);

}  // namespace lockstep::internal::testing
