// Callbacks that save the fit: they run behind all others, wherever they stand in the list.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/train/callback.h"

namespace lockstep::internal::inline train {

/// Its on_step_end is called only where a save is due, or the fit is over.
class LastCallback : public Callback {
 public:
  bool writes_files() const override { return true; }
  bool uses_step_logs() const override { return false; }
  /// Whether a save is due after this step of the run, by the number of steps alone: all workers know that.
  virtual bool is_due_at(int64_t /*step*/) { return false; }
  /// Whether one is due by the clock. Asked on the chief now and then, after steps, and before each on_epoch_end; the
  /// answer of one callback is that of all.
  virtual bool is_due_by_clock(const Trainer& /*trainer*/) { return false; }
  /// The options by which is_due_at() goes, which have to be equal on all workers.
  virtual std::string agreed_options() const { return {}; }
  /// Whether what it saves has the state of the other ones of this kind, so that it comes behind them.
  virtual bool comes_behind() const { return false; }
};

/// stop_on_not_finite(): the training step does the work.
class StopOnNotFinite final : public Callback {
 public:
  std::string name() const override { return "stop_on_not_finite"; }
  bool uses_step_logs() const override { return false; }
};

/// Adds the progress that a fit has where its program gives none, if standard error is a terminal.
void add_default_progress(std::vector<std::shared_ptr<Callback>>& callbacks);
/// Whether it is progress(), which looks at the logs of some steps only.
bool is_progress(const Callback& callback);

}  // namespace lockstep::internal::train
