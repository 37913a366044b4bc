// What a program does beside a fit: hooks that the Trainer calls at certain points, in a fixed order.
#pragma once

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/train/history.h"

namespace lockstep {

class Trainer;

/// Base of all callbacks. The Trainer calls the hooks on every worker, on the thread of fit(), outside of steps, in
/// this order: on_fit_begin; for each epoch on_epoch_begin, on_step_end after each step, on_evaluate_end after a
/// validation, on_epoch_end; then on_fit_end. Each hook runs over all callbacks in the order of FitOptions::callbacks
/// before the next hook begins. A fit that resumes has on_fit_resume after on_fit_begin; one that resumes in an epoch
/// then goes on with on_step_end.
///
/// A hook may call everything that a program may call between steps, as long as all workers do the same. It asks things
/// of the fit by Trainer::stop(), Trainer::log(), and by setting the optimizer's rates: what a hook has asked is
/// compared over all workers, and a difference is a UsageError (LS-CALLBACK-DIFFERS) that names both. What a hook
/// throws ends the fit, on all workers; all other callbacks then get on_fit_fail. Files are the chief's business
/// (Strategy::is_chief()).
class Callback {
 public:
  Callback() = default;
  virtual ~Callback() = default;
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  /// Before the first epoch. The logs are empty.
  virtual void on_fit_begin(Trainer& /*trainer*/, const Logs& /*logs*/) {}
  /// After on_fit_begin, where checkpoints() has resumed the fit: the run's state, the history, and what load() takes
  /// are those of the checkpoint. The logs are empty.
  virtual void on_fit_resume(Trainer& /*trainer*/, const Logs& /*logs*/) {}
  /// Before an epoch's first step. The logs are empty.
  virtual void on_epoch_begin(Trainer& /*trainer*/, const Logs& /*logs*/) {}
  /// After each step, with the loss and the metrics of that step alone. Where FitOptions::log_every is above 1, the
  /// logs of the steps between are empty.
  virtual void on_step_end(Trainer& /*trainer*/, const Logs& /*logs*/) {}
  /// After a validation in a fit, with plain names: "loss", not "val_loss".
  virtual void on_evaluate_end(Trainer& /*trainer*/, const Logs& /*logs*/) {}
  /// After an epoch and its validation. The loss and metrics are those over the whole epoch, weighted by samples;
  /// validation's have "val_" before their names.
  virtual void on_epoch_end(Trainer& /*trainer*/, const Logs& /*logs*/) {}
  /// After the last epoch, with its logs as on_epoch_end had them at first, also where the fit was stopped.
  virtual void on_fit_end(Trainer& /*trainer*/, const Logs& /*logs*/) {}
  /// In place of every later hook, where a step, or a hook of another callback, has thrown `error`. What it throws
  /// itself is logged, and the fit throws the first error. It makes no call of all workers.
  virtual void on_fit_fail(const std::exception& /*error*/) {}

  /// What it must know to go on: saved with each checkpoint of the fit, after all hooks of that step or epoch, and
  /// given to load() after on_fit_begin where the fit resumes. Called on every worker; the chief's is saved. The
  /// default has none.
  virtual nlohmann::json state() const;
  /// Takes what state() gave. Not called where a checkpoint has none under its name.
  virtual void load(const nlohmann::json& state);

  /// In messages, and for its state in checkpoints: callbacks of one name are told apart by their order. The default is
  /// the name of the type.
  virtual std::string name() const;
  /// Whether it writes files. No hook of such a callback is called in a dry run (FitOptions::dry_run).
  virtual bool writes_files() const { return false; }
  /// Whether on_step_end uses its logs. Where no callback of any kind does, the numbers of many steps are brought
  /// together at once, on_step_end has empty logs, and a step costs less. Called once, as the fit begins; all workers
  /// give the same.
  virtual bool uses_step_logs() const { return true; }
  /// Names that it adds to the logs by Trainer::log(), so that other callbacks may monitor them.
  virtual std::vector<std::string> added_logs() const { return {}; }
  /// Names of on_epoch_end's logs that it cannot do without. One that does not exist is a UsageError (LS-MONITOR)
  /// before the first step, with the names that there are.
  virtual std::vector<std::string> monitored() const { return {}; }
};

}  // namespace lockstep
