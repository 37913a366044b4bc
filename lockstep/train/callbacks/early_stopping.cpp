// early_stopping(): stops where a number has not improved for some epochs.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/callbacks/kept_values.h"
#include "lockstep/train/callbacks/monitor.h"
#include "lockstep/train/fit.h"

namespace lockstep {

namespace {

using internal::Fit;
using internal::KeptValues;
using internal::Monitor;

class EarlyStopping final : public Callback {
 public:
  explicit EarlyStopping(callbacks::EarlyStoppingOptions options)
      : options_(std::move(options)), monitor_(options_.monitor, options_.mode, options_.min_delta) {}

  std::string name() const override { return "early_stopping"; }
  bool uses_step_logs() const override { return false; }
  std::vector<std::string> monitored() const override { return {options_.monitor}; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    monitor_.begin(trainer);
    wait_ = 0;
    seen_ = 0;
    best_epoch_ = -1;
    if (options_.restore_best) kept_.emplace(trainer, Fit::of(trainer).running_name() + "/best");
  }

  void on_evaluate_end(Trainer& trainer, const Logs& logs) override { look(trainer, logs, true); }
  void on_epoch_end(Trainer& trainer, const Logs& logs) override { look(trainer, logs, false); }

  void on_fit_end(Trainer& trainer, const Logs& /*logs*/) override {
    if (kept_ && best_epoch_ >= 0) {
      kept_->restore();
      if (trainer.strategy().is_chief()) {
        internal::log(LogLevel::kInfo, fmt::format("early_stopping: the model has the values of epoch {}, {} = {:.6g}",
                                                   best_epoch_ + 1, options_.monitor, *monitor_.best()));
      }
    }
    kept_.reset();
  }
  void on_fit_fail(const std::exception& /*error*/) override { kept_.reset(); }

  nlohmann::json state() const override {
    return {{"best", monitor_.state()}, {"best_epoch", best_epoch_}, {"wait", wait_}, {"seen", seen_}};
  }
  void load(const nlohmann::json& state) override {
    monitor_.load(state.at("best"));
    best_epoch_ = state.at("best_epoch").get<int64_t>();
    wait_ = state.at("wait").get<int64_t>();
    seen_ = state.at("seen").get<int64_t>();
  }

 private:
  void look(Trainer& trainer, const Logs& logs, bool is_validation) {
    const std::optional<double> value = monitor_.value_in(trainer, logs, is_validation);
    const int64_t epoch = trainer.status().epoch;
    if (!value || epoch < options_.start_from_epoch) return;
    // The first epoch does not stop; of validations by steps, the first.
    const bool may_stop = is_validation ? seen_ > 0 : epoch > 0;
    ++seen_;
    ++wait_;
    const bool reached = options_.goal && monitor_.reaches(*value, *options_.goal);
    if (monitor_.is_new_best(*value)) {
      best_epoch_ = epoch;
      if (kept_) kept_->keep();
      if (!options_.baseline || monitor_.improves(*value, *options_.baseline)) wait_ = 0;
      if (reached) {
        trainer.stop(
            fmt::format("{} is {:.6g} and has reached the goal {:.6g}", options_.monitor, *value, *options_.goal));
      }
      return;
    }
    if (reached) {
      trainer.stop(
          fmt::format("{} is {:.6g} and has reached the goal {:.6g}", options_.monitor, *value, *options_.goal));
    } else if (wait_ >= options_.patience && may_stop) {
      trainer.stop(fmt::format("{} has not improved for {}", options_.monitor,
                               internal::counted(wait_, is_validation ? "validation" : "epoch")));
    }
  }

  const callbacks::EarlyStoppingOptions options_;
  Monitor monitor_;
  std::optional<KeptValues> kept_;  // in a fit, where the best values are to be restored
  int64_t best_epoch_ = -1;
  int64_t wait_ = 0;
  int64_t seen_ = 0;
};

}  // namespace

std::shared_ptr<Callback> callbacks::early_stopping(EarlyStoppingOptions options) {
  if (options.patience < 0) {
    throw UsageError("LS-OPTION", fmt::format("early_stopping was given a .patience of {}", options.patience),
                     "give a number from 0");
  }
  return std::make_shared<EarlyStopping>(std::move(options));
}

}  // namespace lockstep
