// What a fit is told: its options, its callbacks, and the names that its logs will have.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/equal_texts.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/train/callbacks/last_callback.h"
#include "lockstep/train/fit.h"

namespace lockstep::internal::inline train {

namespace {

void refuse(const std::string& fact, const std::string& remedy) { throw UsageError("LS-OPTION", fact, remedy); }

bool has_stop_on_not_finite(const FitOptions& options) {
  return std::any_of(options.callbacks.begin(), options.callbacks.end(),
                     [](const auto& one) { return dynamic_cast<const StopOnNotFinite*>(one.get()) != nullptr; });
}

}  // namespace

Fit::Fit(Trainer& trainer, Trainer::State& state, const DistributedDataset& data, FitOptions options)
    : trainer_(trainer),
      state_(state),
      strategy_(trainer.strategy_),
      data_(data),
      options_(std::move(options)),
      no_metrics_({}),
      train_metrics_(state.setup.step ? no_metrics_ : state.metrics) {
  require_options();
  std::vector<std::shared_ptr<Callback>> others;
  std::vector<std::shared_ptr<Callback>> last;
  for (const auto& callback : options_.callbacks) {
    if (!callback) refuse("FitOptions::callbacks has an empty pointer", "give it a callback");
    if (options_.dry_run && callback->writes_files()) continue;
    const bool is_last = dynamic_cast<const LastCallback*>(callback.get()) != nullptr;
    (is_last ? last : others).push_back(callback);
  }
  std::stable_partition(last.begin(), last.end(),
                        [](const auto& one) { return !dynamic_cast<const LastCallback&>(*one).comes_behind(); });
  add_default_progress(others);
  is_watched_ = !others.empty() || !last.empty();
  hooks_ = std::make_unique<Hooks>(strategy_, std::move(others));
  last_ = std::make_unique<Hooks>(strategy_, std::move(last));
  running_ = hooks_.get();
  train_ = part_work(has_stop_on_not_finite(options_) ? PartKind::kTrainFinite : PartKind::kTrain, state_.setup,
                     train_metrics_);
  place_.epoch = options_.initial_epoch;
  find_log_names();
}

void Fit::require_options() const {
  if (!state_.setup.step) require_forward(state_.setup, "Trainer::fit");
  data_.cursor();  // an empty handle is refused here
  const auto require = [](bool fits, const char* name, const auto& given, const char* remedy) {
    if (!fits) refuse(fmt::format("FitOptions::{} is {}", name, given), remedy);
  };
  require(options_.epochs.value_or(0) >= 0, "epochs", options_.epochs.value_or(0), "give a number from 0");
  require(options_.steps.value_or(0) >= 0, "steps", options_.steps.value_or(0), "give a number from 0");
  require(options_.initial_epoch >= 0, "initial_epoch", options_.initial_epoch, "give a number from 0");
  require(options_.validate_every >= 1, "validate_every", options_.validate_every, "give a number from 1");
  require(options_.validate_every_steps >= 0, "validate_every_steps", options_.validate_every_steps,
          "give a number from 1, or 0 to validate at epochs' ends");
  require(options_.log_every >= 1, "log_every", options_.log_every, "give a number from 1");
  require(options_.time.count() >= 0, "time", options_.time.count(), "give a time from 0");
  if (options_.validation) {
    require_end(*options_.validation, "FitOptions::validation");
    require_numbers(state_.setup, state_.metrics, "FitOptions::validation");
  }
  if (!options_.steps && options_.time.count() == 0 && !options_.dry_run && deal_behind(data_).is_endless()) {
    throw UsageError("LS-STREAM",
                     fmt::format("Trainer::fit was given a stream without end, and neither .steps nor .time: {}",
                                 deal_behind(data_).describe()),
                     "give FitOptions .steps, or end the stream by take(n)");
  }
}

void Fit::require_equal_options() const {
  std::vector<std::string> texts{fmt::format(
      "a fit with .epochs = {}, .steps = {}, {}.validate_every = {}, .initial_epoch = {}, .validate_every_steps = {}, "
      ".time = {}, .log_every = {}, .dry_run = {}, .check_validation = {}",
      options_.epochs.value_or(-1), options_.steps.value_or(-1), options_.validation ? ".validation, " : "",
      options_.validate_every, options_.initial_epoch, options_.validate_every_steps, options_.time.count(),
      options_.log_every, options_.dry_run, options_.check_validation)};
  for (const auto& callback : options_.callbacks) {
    const auto* const last = dynamic_cast<const LastCallback*>(callback.get());
    texts.push_back(fmt::format("'{}'{}", callback->name(), last ? last->agreed_options() : ""));
  }
  Rounds& rounds = StrategyAccess::rounds(strategy_);
  rounds.begin();
  require_equal_texts(rounds, {.call = "Trainer::fit", .step = strategy_.step()}, texts, "Trainer::fit",
                      "option or callback",
                      "give all workers the same options and callbacks; what the chief alone does, such as writing a "
                      "file, a callback does where strategy.is_chief()");
}

void Fit::find_log_names() {
  state_.log_names = train_metrics_.names();
  if (options_.validation) {
    for (const std::string& name : state_.metrics.names(static_cast<bool>(state_.setup.loss)))
      state_.log_names.push_back("val_" + name);
  }
  for (const auto* hooks : {hooks_.get(), last_.get()}) {
    for (const auto& callback : hooks->callbacks()) {
      for (const std::string& name : callback->added_logs()) state_.log_names.push_back(name);
    }
  }
  std::sort(state_.log_names.begin(), state_.log_names.end());
  state_.log_names.erase(std::unique(state_.log_names.begin(), state_.log_names.end()), state_.log_names.end());
  for (const auto* hooks : {hooks_.get(), last_.get()}) {
    for (const auto& callback : hooks->callbacks()) {
      for (const std::string& name : callback->monitored()) {
        if (std::binary_search(state_.log_names.begin(), state_.log_names.end(), name)) continue;
        throw UsageError(
            "LS-MONITOR",
            fmt::format("'{}' monitors '{}', and this fit's logs have no such name", callback->name(), name),
            fmt::format("monitor one of {}{}", fmt::join(state_.log_names, ", "),
                        options_.validation ? "" : "; with a .validation there are more"));
      }
    }
  }
}

bool Fit::is_higher_better(const std::string& name) const {
  const std::string plain = name.starts_with("val_") ? name.substr(4) : name;
  if (plain == "loss") return false;
  const auto& specs = state_.metrics.specs();
  for (const MetricSpec& spec : specs) {
    const std::vector<std::string> names = MetricList({spec}).names(false);
    if (std::find(names.begin(), names.end(), plain) != names.end()) return spec.higher_is_better;
  }
  throw UsageError("LS-MONITOR", fmt::format("it is not known whether a higher '{}' is better", name),
                   "give the callback .mode = lockstep::Mode::kMin or kMax");
}

}  // namespace lockstep::internal::train
