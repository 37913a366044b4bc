// Learning rates that follow from the step alone, so that a run that was resumed has those of one that never stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// The learning rate of step k, from 0. A function of k alone: every worker calls it, also for steps that it resumes
/// at. See Optimizer::set_schedule.
using Schedule = std::function<double(int64_t step)>;

/// Common schedules. Those that have a number of steps reach their last rate at that step, and keep it. Each throws a
/// UsageError (LS-OPTION) for rates and factors that are negative or not finite, and for counts below 1.
namespace schedules {

Schedule constant(double rate);
/// rate * factor^(k / every), rounded down: torch.optim's StepLR.
Schedule step(double rate, int64_t every, double factor);
/// rate * factor^n, where n of `steps` are at most k; they ascend: torch.optim's MultiStepLR.
Schedule multi_step(double rate, std::vector<int64_t> steps, double factor);
/// rate * factor^k.
Schedule exponential(double rate, double factor);

struct PolynomialOptions {
  double end = 0;
  double power = 1;
};
/// end + (rate - end) * (1 - k / steps)^power: Keras' PolynomialDecay.
Schedule polynomial(double rate, int64_t steps, PolynomialOptions options = {});

struct CosineOptions {
  double end = 0;
  int64_t warm_up = 0;        // steps, counted in `steps`: from rate / warm_up to rate in equal parts
  int64_t restart_every = 0;  // steps after the warm-up, at which it begins at `rate` again; 0: never
};
/// end + (rate - end) * (1 + cos(pi p)) / 2, where p is the part of the steps after the warm-up, or since the last
/// restart, that has passed.
Schedule cosine(double rate, int64_t steps, CosineOptions options = {});

struct OneCycleOptions {
  std::optional<double> start = std::nullopt;  // peak / 25
  std::optional<double> end = std::nullopt;    // peak / 1e4
  double rise = 0.3;                           // the part of the steps that go up
};
/// From `start` to `peak` and down to `end`, by halves of a cosine: torch.optim's OneCycleLR. Its last step is
/// steps - 1.
Schedule one_cycle(double peak, int64_t steps, OneCycleOptions options = {});

/// A part of a sequence.
struct SequencePart {
  Schedule schedule;
  int64_t steps;
};
/// One after the other, each with its own steps from 0. After the last part's steps its last rate stays.
Schedule sequence(std::vector<SequencePart> parts);

}  // namespace schedules

namespace internal::inline optim {

/// The rate of step k. A UsageError that names the optimizer and the step where it is negative or not finite.
double rate_of(const Schedule& schedule, int64_t k, const std::string& optimizer);

}  // namespace internal::optim

}  // namespace lockstep
