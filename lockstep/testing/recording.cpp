#include "lockstep/testing/recording.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <mutex>

#include "lockstep/core/blocks.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline testing {

namespace {

RecordedVariable recorded(const Variable& variable) {
  RecordedVariable result{.name = variable.name(),
                          .on_write = variable.synchronization() == VariableSynchronization::kOnWrite,
                          .aggregation = variable.aggregation()};
  if (result.on_write || result.aggregation != VariableAggregation::kNone) result.value = variable.read();
  if (!result.on_write) {
    for (const at::Tensor& component : variable.components()) result.components.push_back(component);
  }
  return result;
}

Moment moment_of(const Strategy& strategy) {
  Moment moment{.steps = strategy.step(), .variables = {}};
  for (const Variable& variable : strategy.variables()) moment.variables.push_back(recorded(variable));
  return moment;
}

}  // namespace

GeneratorOfNewProcess::GeneratorOfNewProcess() : generator_(at::detail::getDefaultCPUGenerator()) {
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  before_ = generator_.get_state();
  generator_.set_current_seed(c10::default_rng_seed_val);
}

GeneratorOfNewProcess::~GeneratorOfNewProcess() {
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  generator_.set_state(before_);
}

Recording record(const lockstep::testing::TrainingProgram& program, Strategy& strategy, std::string who) {
  const GeneratorOfNewProcess generator;
  return record_with_generator(program, strategy, std::move(who));
}

Recording record_with_generator(const lockstep::testing::TrainingProgram& program, Strategy& strategy,
                                std::string who) {
  Recording recording{.who = std::move(who), .moments = {}};
  program(strategy, [&] { recording.moments.push_back(moment_of(strategy)); });
  const std::vector<Moment>& moments = recording.moments;
  if (moments.empty() || moments.front().steps != 0 || moments.back().steps == 0) {
    throw UsageError(
        "LS-OBSERVE",
        fmt::format("a training program to be compared did {} steps and called observe() {} times{}", strategy.step(),
                    moments.size(), moments.empty() ? "" : fmt::format(", first after {}", moments.front().steps)),
        "call observe() once before the first step and after each step");
  }
  return recording;
}

Recording part_of(Recording whole, int64_t replicas, int64_t workers, int64_t worker) {
  const Block block = block_of(replicas, workers, worker);
  for (Moment& moment : whole.moments) {
    for (RecordedVariable& variable : moment.variables) {
      if (variable.components.empty()) continue;
      variable.components = {variable.components.begin() + block.first, variable.components.begin() + block.end()};
    }
  }
  return whole;
}

}  // namespace lockstep::internal::testing
