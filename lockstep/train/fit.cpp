#include "lockstep/train/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/train/callbacks/last_callback.h"
#include "lockstep/train/numbers.h"

namespace lockstep::internal::inline train {

namespace {

void refuse(const std::string& fact, const std::string& remedy) { throw UsageError("LS-OPTION", fact, remedy); }

bool has_stop_on_not_finite(const FitOptions& options) {
  return std::any_of(options.callbacks.begin(), options.callbacks.end(),
                     [](const auto& one) { return dynamic_cast<const StopOnNotFinite*>(one.get()) != nullptr; });
}

/// Steps of a whole epoch, or -1 where that is not known.
int64_t steps_per_epoch(const DistributedDataset& data, int64_t accumulate) {
  try {
    return (data.steps_per_epoch() + accumulate - 1) / accumulate;
  } catch (const UsageError&) {
    return -1;  // a stream
  }
}

nlohmann::json json_of_logs(const Logs& logs) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : logs) json[name] = json_of(value);
  return json;
}

/// Keeps the number of evaluations, of which random streams of evaluations are functions.
class UncountedEvaluation {
 public:
  explicit UncountedEvaluation(const Strategy& strategy) {
    for (StateItem& item : strategy.state_items()) {
      if (item.kind != StateItem::Kind::kNumber || item.name != "evaluations") continue;
      before_ = item.read();
      item_ = std::move(item);
    }
  }
  void undo() { item_.write(before_); }

 private:
  StateItem item_;
  std::vector<at::Tensor> before_;
};

}  // namespace

Fit& Fit::of(const Trainer& trainer) { return trainer.fit_under_way("this call"); }

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
  hooks_ = std::make_unique<Hooks>(strategy_, std::move(others));
  last_ = std::make_unique<Hooks>(strategy_, std::move(last));
  running_ = hooks_.get();
  train_step_.emplace(strategy_, state_.setup, train_metrics_, has_stop_on_not_finite(options_));
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
    options_.validation->cursor();
    require_forward(state_.setup, "a validation in Trainer::fit");
  }
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

History Fit::run() {
  state_.history = {};
  state_.stopped.clear();
  FitStatus& status = state_.status = {};
  status.is_dry_run = options_.dry_run;
  status.epoch = options_.initial_epoch;
  status.epochs = options_.epochs ? *options_.epochs : options_.steps ? -1 : options_.initial_epoch + 1;
  status.steps_per_epoch = steps_per_epoch(data_, state_.setup.accumulate);
  status.steps = options_.steps.value_or(-1);
  if (status.epochs >= 0 && status.steps_per_epoch >= 0) {
    const int64_t all = std::max<int64_t>(status.epochs - options_.initial_epoch, 0) * status.steps_per_epoch;
    status.steps = status.steps < 0 ? all : std::min(status.steps, all);
  }
  if (options_.dry_run) status.steps = std::min<int64_t>(status.steps < 0 ? 1 : status.steps, 1);
  try {
    call(Hook::kFitBegin, {});
    check_validation();
    while (must_end_epoch_ || !is_over()) epoch();
    const auto& epochs = state_.history.epochs();
    call(Hook::kFitEnd, epochs.empty() ? Logs() : epochs.back());
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    tell_failure(strategy_, "Trainer::fit", message_of(error), error);
    hooks_->fail(error);
    last_->fail(error);
    throw;
  }
  return state_.history;
}

void Fit::check_validation() {
  if (!options_.validation || !options_.check_validation || options_.dry_run || state_.status.is_resumed) return;
  if (is_over()) return;
  UncountedEvaluation uncounted(strategy_);
  const Totals totals = evaluate(strategy_, state_.setup, state_.metrics, *options_.validation, true);
  static_cast<void>(state_.metrics.logs_of(totals, static_cast<bool>(state_.setup.loss)));
  uncounted.undo();
}

void Fit::epoch() {
  const bool goes_on = std::exchange(must_end_epoch_, false);
  state_.status.epoch = place_.epoch;
  state_.status.epoch_step = place_.epoch_step;
  has_left_epoch_ = false;
  if (!goes_on) {
    place_.epoch_totals = {};
    place_.extra.clear();
    call(Hook::kEpochBegin, {});
  }
  has_left_epoch_ = steps_of_epoch(goes_on);
  end_epoch();
}

bool Fit::steps_of_epoch(bool goes_on) {
  if (goes_on) {
    validate_after_step();
    if (is_over()) return true;
  }
  double& input = state_.status.input_seconds;
  const auto timed = [&](const auto& read) {
    const auto asked = Clock::now();
    auto&& got = read();
    input += std::chrono::duration<double>(Clock::now() - asked).count();
    return got;
  };
  const auto epoch = data_.epoch(place_.epoch);
  const auto end = epoch.end();
  auto batch = timed([&] { return epoch.begin(); });
  const auto go_on = [&] { timed([&] { return ++batch, true; }); };
  while (!(batch == end)) {
    if (state_.setup.accumulate == 1) {
      step(*batch, batch->begin()->global_size);
    } else {
      std::vector<PerReplica<Batch>> batches;
      int64_t samples = 0;
      while (!(batch == end)) {
        batches.push_back(*batch);
        samples += batch->begin()->global_size;
        if (static_cast<int64_t>(batches.size()) == state_.setup.accumulate) break;
        go_on();
      }
      step(batches, samples);
    }
    if (is_over()) return true;  // before the next batch counts as used
    go_on();
  }
  return false;
}

template <class Batches>
void Fit::step(const Batches& batches, int64_t samples) {
  waiting_.push_back((*train_step_)(batches));
  waiting_samples_.push_back(samples);
  ++place_.step;
  ++place_.epoch_step;
  place_.samples += samples;
  FitStatus& status = state_.status;
  status.step = place_.step;
  status.epoch_step = place_.epoch_step;
  status.samples = place_.samples;
  status.gradient_norm = waiting_.back().begin()->gradient_norm;
  Logs logs;
  if (place_.step % options_.log_every == 0) logs = train_metrics_.logs_of(*bring_together());
  call(Hook::kStepEnd, logs);
  validate_after_step();
}

std::optional<Totals> Fit::bring_together() {
  std::optional<Totals> last;
  for (Totals& totals : train_metrics_.bring_together(strategy_, waiting_, waiting_samples_)) {
    place_.epoch_totals.add(totals);
    last = std::move(totals);
  }
  waiting_.clear();
  waiting_samples_.clear();
  return last;
}

void Fit::validate_after_step() {
  if (!options_.validation || options_.validate_every_steps == 0) return;
  if (place_.step % options_.validate_every_steps != 0 || place_.validated_step == place_.step) return;
  place_.validated_step = place_.step;
  validate();
}

bool Fit::wants_validation(int64_t epoch) const {
  if (!options_.validation || options_.validate_every_steps > 0) return false;
  return (epoch + 1 - options_.initial_epoch) % options_.validate_every == 0;
}

void Fit::validate() {
  const auto before = Clock::now();
  const Totals totals = evaluate(strategy_, state_.setup, state_.metrics, *options_.validation, options_.dry_run);
  state_.status.validation_seconds += std::chrono::duration<double>(Clock::now() - before).count();
  const Logs logs = state_.metrics.logs_of(totals, static_cast<bool>(state_.setup.loss));
  for (const auto& [name, value] : logs) place_.extra["val_" + name] = value;
  call(Hook::kEvaluateEnd, logs);
}

void Fit::end_epoch() {
  bring_together();
  if (place_.epoch_step == 0) {
    throw DataError("LS-NO-SAMPLES", fmt::format("epoch {} has no batch to train on", place_.epoch),
                    "give more data; after a seek() into a later epoch, begin with .initial_epoch there");
  }
  if (wants_validation(place_.epoch)) validate();
  epoch_logs_ = train_metrics_.logs_of(place_.epoch_totals);
  for (const auto& [name, value] : place_.extra) epoch_logs_[name] = value;
  is_ending_epoch_ = true;
  call(Hook::kEpochEnd, epoch_logs_);
  is_ending_epoch_ = false;
}

void Fit::call(Hook hook, const Logs& logs) {
  static constexpr const char* kNames[] = {"on_fit_begin",    "on_epoch_begin", "on_step_end",
                                           "on_evaluate_end", "on_epoch_end",   "on_fit_end"};
  const auto call_one = [&](Callback& callback) {
    switch (hook) {
      case Hook::kFitBegin: return callback.on_fit_begin(trainer_, logs);
      case Hook::kEpochBegin: return callback.on_epoch_begin(trainer_, logs);
      case Hook::kStepEnd: return callback.on_step_end(trainer_, logs);
      case Hook::kEvaluateEnd: return callback.on_evaluate_end(trainer_, logs);
      case Hook::kEpochEnd: return callback.on_epoch_end(trainer_, logs);
      case Hook::kFitEnd: return callback.on_fit_end(trainer_, logs);
    }
  };
  const char* const name = kNames[static_cast<std::size_t>(hook)];
  const auto state = [&] { return rates_text(); };
  const bool may_save = hook == Hook::kStepEnd || hook == Hook::kEpochEnd;
  ChiefSays mine;
  state_.status.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  if (strategy_.is_chief() && may_save) {
    mine.is_time_over = options_.time.count() > 0 && state_.status.seconds >= options_.time.count();
    for (const auto& callback : last_->callbacks()) {
      mine.is_save_due = dynamic_cast<LastCallback&>(*callback).is_due(trainer_) || mine.is_save_due;
    }
  }
  running_ = hooks_.get();
  const ChiefSays says = hooks_->call(name, call_one, state, mine);
  save_is_due_ = says.is_save_due;
  is_time_over_ = is_time_over_ || says.is_time_over;
  if (may_save) note_end_of_step();
  if (hook == Hook::kEpochEnd) {
    state_.history.add(place_.epoch, epoch_logs_);
    ++place_.epoch;
    place_.epoch_step = 0;
    place_.epoch_totals = {};
    place_.extra.clear();
    if (stopped_by_callback_ && !has_left_epoch_) place_.stopped = state_.stopped;
  }
  if (last_->callbacks().empty() || (hook == Hook::kStepEnd && !save_is_due_ && !is_over())) return;
  running_ = last_.get();
  last_->call(name, call_one, state, {});
  running_ = hooks_.get();
}

void Fit::note_end_of_step() {
  if (!state_.stopped.empty()) return;
  if (strategy_.stop_requested()) state_.stopped = "a worker was asked to stop";
  if (is_time_over_) state_.stopped = "the time of the fit is over";
}

bool Fit::is_over() const {
  if (!state_.stopped.empty() || strategy_.stop_requested() || is_time_over_) return true;
  if (options_.dry_run && place_.step > 0) return true;
  if (options_.steps && place_.step >= *options_.steps) return true;
  return place_.epoch_step == 0 && state_.status.epochs >= 0 && place_.epoch >= state_.status.epochs;
}

void Fit::stop(const std::string& why) {
  running_->note(fmt::format("to stop ({})", why));
  stopped_by_callback_ = true;
  if (state_.stopped.empty()) state_.stopped = why.empty() ? "a callback asked to stop" : why;
}

void Fit::log(const std::string& name, double value) {
  running_->note(fmt::format("to log {} = {}", name, value));
  (is_ending_epoch_ ? epoch_logs_ : place_.extra)[name] = value;
}

std::string Fit::rates_text() const {
  if (!state_.setup.optimizer) return {};
  std::vector<double> rates;
  for (int64_t g = 0; g < state_.setup.optimizer->num_groups(); ++g) {
    rates.push_back(state_.setup.optimizer->learning_rate(g));
  }
  return fmt::format("rates {}", fmt::join(rates, " "));
}

Checkpoint Fit::checkpoint() {
  bring_together();
  Checkpoint checkpoint(strategy_);
  checkpoint.track("fit data", data_);
  checkpoint.track(
      "fit", [this] { return saved(); }, [this](const std::string& text) { load(text); });
  return checkpoint;
}

std::string Fit::saved() const {
  if (!waiting_.empty()) {
    throw UsageError("LS-OPTION", "a Checkpoint of an earlier step of the fit was used to save",
                     "ask Trainer::checkpoint() anew for each save");
  }
  const nlohmann::json json{{"epoch", place_.epoch},
                            {"epoch_step", place_.epoch_step},
                            {"step", place_.step},
                            {"samples", place_.samples},
                            {"validated_step", place_.validated_step},
                            {"stopped", place_.stopped},
                            {"epoch_totals", place_.epoch_totals.to_json()},
                            {"extra", json_of_logs(place_.extra)},
                            {"history", state_.history.to_json()},
                            {"callbacks", hooks_->state()},
                            {"last_callbacks", last_->state()}};
  return json.dump();
}

void Fit::load(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  place_ = {.epoch = json.at("epoch").get<int64_t>(),
            .epoch_step = json.at("epoch_step").get<int64_t>(),
            .step = json.at("step").get<int64_t>(),
            .samples = json.at("samples").get<int64_t>(),
            .validated_step = json.at("validated_step").get<int64_t>(),
            .stopped = json.at("stopped").get<std::string>(),
            .epoch_totals = Totals::from_json(json.at("epoch_totals"))};
  for (const auto& [name, value] : json.at("extra").items()) place_.extra[name] = number_of(value);
  state_.history = History::from_json(json.at("history"));
  state_.stopped = place_.stopped;
  must_end_epoch_ = place_.epoch_step > 0;
  hooks_->load(json.at("callbacks"));
  last_->load(json.at("last_callbacks"));
}

void Fit::note_resumed() {
  FitStatus& status = state_.status;
  status.is_resumed = true;
  status.epoch = place_.epoch_step > 0 || state_.history.numbers().empty() ? place_.epoch : place_.epoch - 1;
  status.step = place_.step;
  status.epoch_step = place_.epoch_step;
  status.samples = place_.samples;
}

}  // namespace lockstep::internal::train
