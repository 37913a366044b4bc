#include "lockstep/optim/rules/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/optim/rules/option_checks.h"

namespace lockstep {

double internal::rate_of(const Schedule& schedule, int64_t k, const std::string& optimizer) {
  const double rate = schedule(k);
  if (rate >= 0 && std::isfinite(rate)) return rate;
  throw UsageError("LS-OPTION",
                   fmt::format("the schedule of '{}' gave a learning rate of {} for step {}", optimizer, rate, k),
                   "give a finite rate that is not negative for each step, from 0 on");
}

namespace schedules {

using internal::check_count;
using internal::check_not_negative;
using internal::require_option;

namespace {

/// From `from` to `to` as `part` goes from 0 to 1, by half a cosine.
double half_cosine(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

Schedule constant(double rate) {
  check_not_negative("schedules::constant", "rate", rate);
  return [rate](int64_t) { return rate; };
}

Schedule step(double rate, int64_t every, double factor) {
  check_not_negative("schedules::step", "rate", rate);
  check_count("schedules::step", "every", every);
  check_not_negative("schedules::step", "factor", factor);
  return [=](int64_t k) { return rate * std::pow(factor, static_cast<double>(k / every)); };
}

Schedule multi_step(double rate, std::vector<int64_t> steps, double factor) {
  check_not_negative("schedules::multi_step", "rate", rate);
  check_not_negative("schedules::multi_step", "factor", factor);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    check_count("schedules::multi_step", "steps", steps[i], 0);
    if (i > 0) {
      require_option(steps[i] > steps[i - 1], "schedules::multi_step", "steps", static_cast<double>(steps[i]),
                     "give steps that ascend");
    }
  }
  return [rate, factor, steps = std::move(steps)](int64_t k) {
    const auto passed = std::upper_bound(steps.begin(), steps.end(), k) - steps.begin();
    return rate * std::pow(factor, static_cast<double>(passed));
  };
}

Schedule exponential(double rate, double factor) {
  check_not_negative("schedules::exponential", "rate", rate);
  check_not_negative("schedules::exponential", "factor", factor);
  return [=](int64_t k) { return rate * std::pow(factor, static_cast<double>(k)); };
}

Schedule polynomial(double rate, int64_t steps, PolynomialOptions options) {
  check_not_negative("schedules::polynomial", "rate", rate);
  check_count("schedules::polynomial", "steps", steps);
  check_not_negative("schedules::polynomial", ".end", options.end);
  check_not_negative("schedules::polynomial", ".power", options.power);
  return [=](int64_t k) {
    const double left = 1 - static_cast<double>(std::min(k, steps)) / static_cast<double>(steps);
    return options.end + (rate - options.end) * std::pow(left, options.power);
  };
}

Schedule cosine(double rate, int64_t steps, CosineOptions options) {
  check_not_negative("schedules::cosine", "rate", rate);
  check_count("schedules::cosine", "steps", steps);
  check_not_negative("schedules::cosine", ".end", options.end);
  check_count("schedules::cosine", ".warm_up", options.warm_up, 0);
  check_count("schedules::cosine", ".restart_every", options.restart_every, 0);
  require_option(options.warm_up <= steps, "schedules::cosine", ".warm_up", static_cast<double>(options.warm_up),
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
  check_not_negative("schedules::one_cycle", "peak", peak);
  check_count("schedules::one_cycle", "steps", steps);
  const double start = options.start.value_or(peak / 25);
  const double end = options.end.value_or(peak / 1e4);
  check_not_negative("schedules::one_cycle", ".start", start);
  check_not_negative("schedules::one_cycle", ".end", end);
  require_option(options.rise >= 0 && options.rise <= 1, "schedules::one_cycle", ".rise", options.rise,
                 "give a number from 0 to 1");
  return [peak, steps, start, end, rise = options.rise](int64_t k) {
    const auto last = static_cast<double>(steps - 1);
    const double top = std::max(0.0, rise * static_cast<double>(steps) - 1);  // where the peak is
    const double at = std::min(static_cast<double>(k), last);
    if (at < top) return half_cosine(start, peak, at / top);
    return last > top ? half_cosine(peak, end, (at - top) / (last - top)) : peak;
  };
}

Schedule sequence(std::vector<SequencePart> parts) {
  require_option(!parts.empty(), "schedules::sequence", "a number of parts", 0, "give at least one part");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_count("schedules::sequence", fmt::format("parts[{}].steps", i), parts[i].steps);
    if (parts[i].schedule) continue;
    throw UsageError("LS-OPTION", fmt::format("schedules::sequence was given an empty parts[{}].schedule", i),
                     "give each part a schedule");
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
