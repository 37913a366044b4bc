// trace(): a trace of some steps of a fit.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/checkpoint/folder/replace_file.h"
#include "lockstep/core/error.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/trace/trace.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

namespace {

class TraceSteps final : public Callback {
 public:
  explicit TraceSteps(callbacks::TraceStepsOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "trace"; }
  bool writes_files() const override { return true; }
  bool uses_step_logs() const override { return false; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    trace_.reset();
    first_ = -1;
    if (trainer.strategy().is_chief()) internal::prepare_to_replace(options_.file);  // an error now costs no epoch
  }
  void on_fit_resume(Trainer& trainer, const Logs& /*logs*/) override { choose_steps(trainer); }
  void on_epoch_begin(Trainer& trainer, const Logs& /*logs*/) override {
    if (first_ < 0) choose_steps(trainer);
  }
  void on_step_end(Trainer& trainer, const Logs& /*logs*/) override {
    if (trace_ && trainer.status().step >= end_) {
      write();
    } else {
      begin_where_due(trainer);
    }
  }
  void on_fit_end(Trainer& /*trainer*/, const Logs& /*logs*/) override {
    if (trace_) write();
  }
  void on_fit_fail(const std::exception& /*error*/) override { trace_.reset(); }

 private:
  void choose_steps(Trainer& trainer) {
    const FitStatus& status = trainer.status();
    first_ = status.step + options_.left_out;
    if (status.steps >= 0) first_ = std::clamp(status.steps - options_.steps, status.step, first_);
    end_ = first_ + options_.steps;
    if (status.steps >= 0) end_ = std::min(end_, status.steps);
    begin_where_due(trainer);
  }

  void begin_where_due(Trainer& trainer) {
    if (trainer.status().step != first_ || end_ <= first_ || trace_) return;
    trace_.emplace(trainer.strategy(), TraceOptions{.file = options_.file});
  }

  void write() {
    try {
      trace_->write();
    } catch (const Error& error) {
      const bool is_of_disk = dynamic_cast<const DataError*>(&error) != nullptr || error.code() == "LS-PEER-FAILED";
      if (!is_of_disk || !options_.on_failed_write) throw;
      options_.on_failed_write(error);
    }
    trace_.reset();
  }

  const callbacks::TraceStepsOptions options_;
  std::optional<Trace> trace_;  // while it records
  int64_t first_ = -1;          // the steps of the fit that are traced; -1: not chosen yet
  int64_t end_ = -1;
};

}  // namespace

std::shared_ptr<Callback> callbacks::trace(TraceStepsOptions options) {
  if (options.file.empty() || options.steps < 1 || options.left_out < 0) {
    throw UsageError("LS-OPTION",
                     fmt::format("trace was given the file '{}', .steps {} and .left_out {}", options.file.string(),
                                 options.steps, options.left_out),
                     "name a .file, and give a number of steps from 1, and of those left out from 0");
  }
  return std::make_shared<TraceSteps>(std::move(options));
}

}  // namespace lockstep
