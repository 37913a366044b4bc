#include "lockstep/train/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/train/callbacks/last_callback.h"
#include "lockstep/train/step/parts_of_step.h"

namespace lockstep::internal::inline train {

namespace {

/// Steps of a whole epoch, or -1 where that is not known.
int64_t steps_per_epoch(const DistributedDataset& data, int64_t accumulate) {
  try {
    return (data.steps_per_epoch() + accumulate - 1) / accumulate;
  } catch (const UsageError&) {
    return -1;  // a stream
  }
}

constexpr int64_t kMostWaiting = 32;  // steps whose numbers may wait: they keep some memory each
constexpr int64_t kMeasured = 16;     // of so many steps one is measured
constexpr int64_t kFirstMeasured = 5;

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
    require_equal_options();
    find_log_need();
    if (strategy_.is_chief() && state_.setup.optimizer && !state_.setup.step) {
      rounded_ = std::make_unique<RoundedUpdates>(strategy_, *state_.setup.optimizer, state_.setup.model->variables);
    }
    call(Hook::kFitBegin, {});
    if (status.is_resumed) call(Hook::kFitResume, {});
    clock_.asked(place_.step, status.seconds, 0);  // the same on all workers
    begin_data();
    state_.runner->run([&] {
      check_validation();
      while (must_end_epoch_ || !is_over()) epoch();
    });
    call(Hook::kFitEnd, place_.last_logs);
    leave_data();
  } catch (...) {
    const std::exception_ptr error = as_of_callback(std::current_exception());
    batches_ = {};
    leave_data();
    tell_failure(strategy_, "Trainer::fit", message_of(error), error);
    hooks_->fail(error);
    last_->fail(error);
    std::rethrow_exception(error);
  }
  return state_.history;
}

void Fit::begin_data() {
  // The program may have sought to a place in the first epoch, and not behind it.
  if (!state_.status.is_resumed && data_.cursor().epoch > place_.epoch) deal_behind(data_).forget_seek();
}

void Fit::leave_data() {
  // The place that a resume, or the program before this fit, has sought is behind what was trained: whoever reads these
  // data next finds whole epochs.
  if (place_.step > 0) deal_behind(data_).forget_seek();
}

void Fit::check_validation() {
  if (!options_.validation || !options_.check_validation || options_.dry_run || state_.status.is_resumed) return;
  if (is_over()) return;
  UncountedEvaluation uncounted(strategy_);
  const Totals totals = evaluate(strategy_, *state_.runner, state_.setup, state_.metrics, *options_.validation,
                                 {.first_batch_only = true});
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
  const auto epoch = data_.epoch(place_.epoch);
  const auto end = epoch.end();
  const auto timed = [&](const auto& read) {
    if (!is_watched_) return read();
    const auto asked = Clock::now();  // for the next batch
    read();
    state_.status.input_seconds += std::chrono::duration<double>(Clock::now() - asked).count();
  };
  auto batch = decltype(epoch.begin())();
  timed([&] { batch = epoch.begin(); });
  const auto go_on = [&] { timed([&] { ++batch; }); };
  StepRunner& runner = *state_.runner;
  while (!(batch == end)) {
    std::vector<PerReplica<Batch>> batches;
    for (;;) {
      batches.push_back(*batch);
      if (static_cast<int64_t>(batches.size()) == state_.setup.accumulate) break;
      go_on();
      if (batch == end) break;
    }
    begin_step(std::move(batches));
    while (runner.under_way() > 0 && must_end_steps()) end_step();
    if (is_over()) return true;  // before the next batch counts as used
    if (!(batch == end)) go_on();
  }
  const bool has_steps = runner.under_way() > 0;
  while (runner.under_way() > 0) end_step();
  return has_steps && is_over();
}

bool Fit::must_end_steps() const {
  const StepRunner& runner = *state_.runner;
  if (!runner.has_room() || save_waits_ || options_.dry_run || is_over()) return true;
  const int64_t handed_out = place_.step + runner.under_way();
  if (options_.steps && handed_out >= *options_.steps) return true;
  return options_.validation && options_.validate_every_steps > 0 && handed_out % options_.validate_every_steps == 0;
}

void Fit::begin_step(std::vector<PerReplica<Batch>> batches) {
  StepLook look;
  if (std::exchange(keeps_gradients_, false) && !state_.setup.step) look.gradients_of = &state_.setup.model->variables;
  std::optional<PartsOfStep> parts;
  // The first steps take memory and choose forms.
  if (measures_parts_ && place_.step % kMeasured == kFirstMeasured) {
    look.parts = &parts.emplace(state_.status.parts, static_cast<int>(strategy_.devices().size()));
  }
  if (rounded_ && rounded_->looks_at(place_.step)) look.rounded = rounded_.get();
  state_.runner->begin(std::move(batches), data_, train_, look);
}

void Fit::end_step() {
  DoneStep done = state_.runner->take();
  batches_ = done.batches;
  gradients_ = std::move(done.gradients);
  state_.status.gradient_norm = done.parts.begin()->gradient_norm;
  waiting_.add(std::move(done.parts), done.samples);
  ++place_.step;
  ++place_.epoch_step;
  place_.samples += done.samples;
  FitStatus& status = state_.status;
  status.step = place_.step;
  status.epoch_step = place_.epoch_step;
  status.samples = place_.samples;
  Logs logs;
  if (is_log_due()) {
    logs = train_metrics_.logs_of(*bring_together());
  } else if (static_cast<int64_t>(waiting_.size()) >= kMostWaiting) {
    bring_together();
  }
  call(Hook::kStepEnd, logs);
  batches_ = {};
  gradients_.clear();
  if (state_.runner->under_way() == 0) validate_after_step();
}

void Fit::find_log_need() {
  bool uses = false;
  bool shows = false;
  for (const auto& callback : hooks_->callbacks()) {
    (is_progress(*callback) ? shows : uses) |= callback->uses_step_logs();
  }
  for (const auto& callback : last_->callbacks()) uses = callback->uses_step_logs() || uses;
  log_need_ = uses ? LogNeed::kByLogEvery : shows ? LogNeed::kNowAndThen : LogNeed::kNone;
  // A bar of the fit's own is the chief's alone.
  if (strategy_.num_workers() > 1) log_need_ = strategy_.on_chief([this] { return log_need_; });
  uses_clock_ = options_.time.count() > 0 || !last_->callbacks().empty() || log_need_ == LogNeed::kNowAndThen;
}

bool Fit::is_log_due() const {
  switch (log_need_) {
    case LogNeed::kNone: return false;
    case LogNeed::kNowAndThen: return is_clock_due();
    case LogNeed::kByLogEvery: return place_.step % options_.log_every == 0;
  }
  return false;
}

ChiefSays Fit::says_by_clock(bool may_save) {
  ChiefSays says{.next_in = clock_.next_in(place_.step, state_.status.seconds)};
  if (!strategy_.is_chief() || !may_save) return says;
  says.is_time_over = options_.time.count() > 0 && state_.status.seconds >= options_.time.count();
  if (last_->callbacks().empty()) return says;
  state_.runner->bring_together([&] {  // the strategy's count of steps does not move meanwhile
    for (const auto& callback : last_->callbacks()) {
      says.is_save_due = dynamic_cast<LastCallback&>(*callback).is_due_by_clock(trainer_) || says.is_save_due;
    }
  });
  return says;
}

bool Fit::is_save_due_by_steps() {
  if (last_->callbacks().empty()) return false;
  bool is_due = false;
  state_.runner->bring_together([&] {
    const int64_t step = strategy_step();
    for (const auto& callback : last_->callbacks()) {
      is_due = dynamic_cast<LastCallback&>(*callback).is_due_at(step) || is_due;
    }
  });
  return is_due;
}

void Fit::keep_gradients() {
  running_->note("to keep the next step's gradients");
  keeps_gradients_ = true;
}

std::optional<Totals> Fit::bring_together() {
  std::optional<Totals> last;
  std::vector<Totals> all;
  state_.runner->bring_together([&] { all = train_metrics_.bring_together(strategy_, waiting_); });
  for (Totals& totals : all) {
    place_.epoch_totals.add(totals);
    last = std::move(totals);
  }
  waiting_.clear();
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
  return (epoch + 1) % options_.validate_every == 0;
}

void Fit::validate() {
  const auto before = Clock::now();
  const Totals totals = evaluate(strategy_, *state_.runner, state_.setup, state_.metrics, *options_.validation,
                                 {.first_batch_only = options_.dry_run});
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
  place_.last_logs = epoch_logs_;
  is_ending_epoch_ = true;
  call(Hook::kEpochEnd, epoch_logs_);
  is_ending_epoch_ = false;
}

void Fit::call(Hook hook, const Logs& logs) {
  static constexpr const char* kNames[] = {"on_fit_begin",    "on_fit_resume", "on_epoch_begin", "on_step_end",
                                           "on_evaluate_end", "on_epoch_end",  "on_fit_end"};
  const auto call_one = [&](Callback& callback) {
    switch (hook) {
      case Hook::kFitBegin: return callback.on_fit_begin(trainer_, logs);
      case Hook::kFitResume: return callback.on_fit_resume(trainer_, logs);
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
  const bool asks_clock = hook != Hook::kStepEnd || is_clock_due();
  const auto seconds_now = [&] { return std::chrono::duration<double>(Clock::now() - begin_).count(); };
  if (is_watched_ || asks_clock) state_.status.seconds = seconds_now();
  const double begin = state_.status.seconds;
  running_ = hooks_.get();
  const auto says = hooks_->call(
      name, call_one, state, [&] { return says_by_clock(may_save); }, asks_clock ? Meet::kAlways : Meet::kWhereAsked);
  save_is_due_ = may_save && is_save_due_by_steps();
  if (says && may_save) {
    save_is_due_ = save_is_due_ || says->is_save_due;
    is_time_over_ = is_time_over_ || says->is_time_over;
    clock_.asked(place_.step, state_.status.seconds, says->next_in);
  }
  if (may_save) note_end_of_step();
  if (hook == Hook::kEpochEnd) {
    state_.history.add(place_.epoch, epoch_logs_);
    ++place_.epoch;
    place_.epoch_step = 0;
    place_.epoch_totals = {};
    place_.extra.clear();
    if (stopped_by_callback_ && !has_left_epoch_) place_.stopped = state_.stopped;
  }
  bool calls_last = !last_->callbacks().empty();
  if (calls_last && hook == Hook::kStepEnd) {
    save_waits_ = save_waits_ || save_is_due_ || is_over();
    calls_last = save_waits_ && state_.runner->under_way() == 0;
    if (calls_last) save_waits_ = false;
  }
  if (calls_last) {
    running_ = last_.get();
    last_->call(
        name, call_one, state, [] { return ChiefSays{}; }, Meet::kAlways);
    running_ = hooks_.get();
  }
  if (is_watched_) state_.status.callback_seconds += seconds_now() - begin;
}

void Fit::note_end_of_step() {
  if (!state_.stopped.empty()) return;
  if (state_.runner->stop_requested()) state_.stopped = "a worker was asked to stop";
  if (is_time_over_) state_.stopped = "the time of the fit is over";
}

bool Fit::is_over() const {
  if (!state_.stopped.empty() || state_.runner->stop_requested() || is_time_over_) return true;
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

}  // namespace lockstep::internal::train
