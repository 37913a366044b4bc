#include "lockstep/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

double internal::rate_of(const Schedule& schedule, int64_t k, const std::string& optimizer) {
  const double rate = schedule(k);
  if (rate >= 0 && std::isfinite(rate)) return rate;
  throw UsageError("LS-OPTION",
                   fmt::format("the schedule of '{}' gave a learning rate of {} for step {}", optimizer, rate, k),
                   "give a finite rate that is not negative for each step, from 0 on");
}

namespace schedules {

namespace {

void require(bool valid, const char* schedule, const char* argument, double value, const char* remedy) {
  if (valid) return;
  throw UsageError("LS-OPTION", fmt::format("schedules::{} was given {} = {}", schedule, argument, value), remedy);
}

void check_number(const char* schedule, const char* argument, double value) {
  require(value >= 0 && std::isfinite(value), schedule, argument, value, "give a finite number that is not negative");
}

void check_count(const char* schedule, const char* argument, int64_t count, int64_t fewest = 1) {
  require(count >= fewest, schedule, argument, static_cast<double>(count),
          fewest == 0 ? "give a number of steps, or 0" : "give a number of steps of at least 1");
}

/// From `from` to `to` as `part` goes from 0 to 1, by half a cosine.
double half_cosine(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

Schedule constant(double rate) {
  check_number("constant", "rate", rate);
  return [rate](int64_t) { return rate; };
}

Schedule step(double rate, int64_t every, double factor) {
  check_number("step", "rate", rate);
  check_count("step", "every", every);
  check_number("step", "factor", factor);
  return [=](int64_t k) { return rate * std::pow(factor, static_cast<double>(k / every)); };
}

Schedule multi_step(double rate, std::vector<int64_t> steps, double factor) {
  check_number("multi_step", "rate", rate);
  check_number("multi_step", "factor", factor);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    check_count("multi_step", "steps", steps[i], 0);
    if (i > 0) {
      require(steps[i] > steps[i - 1], "multi_step", "steps", static_cast<double>(steps[i]), "give steps that ascend");
    }
  }
  return [rate, factor, steps = std::move(steps)](int64_t k) {
    const auto passed = std::upper_bound(steps.begin(), steps.end(), k) - steps.begin();
    return rate * std::pow(factor, static_cast<double>(passed));
  };
}

Schedule exponential(double rate, double factor) {
  check_number("exponential", "rate", rate);
  check_number("exponential", "factor", factor);
  return [=](int64_t k) { return rate * std::pow(factor, static_cast<double>(k)); };
}

Schedule polynomial(double rate, int64_t steps, PolynomialOptions options) {
  check_number("polynomial", "rate", rate);
  check_count("polynomial", "steps", steps);
  check_number("polynomial", ".end", options.end);
  check_number("polynomial", ".power", options.power);
  return [=](int64_t k) {
    const double left = 1 - static_cast<double>(std::min(k, steps)) / static_cast<double>(steps);
    return options.end + (rate - options.end) * std::pow(left, options.power);
  };
}

Schedule cosine(double rate, int64_t steps, CosineOptions options) {
  check_number("cosine", "rate", rate);
  check_count("cosine", "steps", steps);
  check_number("cosine", ".end", options.end);
  check_count("cosine", ".warm_up", options.warm_up, 0);
  check_count("cosine", ".restart_every", options.restart_every, 0);
  require(options.warm_up <= steps, "cosine", ".warm_up", static_cast<double>(options.warm_up),
          "give at most as many steps as the whole schedule has, which count the warm-up");
  return [=](int64_t k) {
    if (k < options.warm_up) return rate * static_cast<double>(k + 1) / static_cast<double>(options.warm_up);
    const int64_t all = steps - options.warm_up;
    if (all == 0) return rate;
    const int64_t cycle = options.restart_every > 0 ? options.restart_every : all;
    const int64_t passed = std::min(k - options.warm_up, all);
    // The end of the whole schedule is the end of a cycle, and no restart.
    const int64_t in_cycle = passed == all ? (all - 1) % cycle + 1 : passed % cycle;
    return half_cosine(rate, options.end, static_cast<double>(in_cycle) / static_cast<double>(cycle));
  };
}

Schedule one_cycle(double peak, int64_t steps, OneCycleOptions options) {
  check_number("one_cycle", "peak", peak);
  check_count("one_cycle", "steps", steps);
  const double start = options.start.value_or(peak / 25);
  const double end = options.end.value_or(peak / 1e4);
  check_number("one_cycle", ".start", start);
  check_number("one_cycle", ".end", end);
  require(options.rise >= 0 && options.rise <= 1, "one_cycle", ".rise", options.rise, "give a number from 0 to 1");
  return [peak, steps, start, end, rise = options.rise](int64_t k) {
    const auto last = static_cast<double>(steps - 1);
    const double top = std::max(0.0, rise * static_cast<double>(steps) - 1);  // where the peak is
    const double at = std::min(static_cast<double>(k), last);
    if (at < top) return half_cosine(start, peak, at / top);
    return last > top ? half_cosine(peak, end, (at - top) / (last - top)) : peak;
  };
}

Schedule sequence(std::vector<Part> parts) {
  require(!parts.empty(), "sequence", "parts", 0, "give at least one part");
  for (const Part& part : parts) {
    check_count("sequence", "steps of a part", part.steps);
    require(static_cast<bool>(part.schedule), "sequence", "a part without a schedule", 0, "give each part a schedule");
  }
  return [parts = std::move(parts)](int64_t k) {
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      if (k < parts[i].steps) return parts[i].schedule(k);
      k -= parts[i].steps;
    }
    return parts.back().schedule(std::min(k, parts.back().steps));
  };
}

}  // namespace schedules

}  // namespace lockstep
