// How a fit calls its callbacks: in their order, with what they ask compared over all workers, and with one end for all
// where one of them throws.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/callback.h"

namespace lockstep::internal::inline train {

/// What the chief tells the others with each round of callbacks: what depends on its clock.
struct ChiefSays {
  bool is_time_over = false;
  bool is_save_due = false;
};

/// Lets the next call of the other workers fail, because this worker has left the fit with `own`, where they do not
/// know that already.
void tell_failure(const Strategy& strategy, const char* call, const std::string& what,
                  const std::exception_ptr& own) noexcept;

class Hooks {
 public:
  /// `is_agreed`: whether the workers compare what was asked, and tell each other who has thrown. All give the same.
  Hooks(Strategy& strategy, std::vector<std::shared_ptr<Callback>> callbacks, bool is_agreed);

  /// Calls `hook` for each callback in order. Then the workers compare what was asked meanwhile; where a callback has
  /// thrown on one of them, the first such error is thrown here, and a PeerError with its text on the others.
  /// `state` is what the hooks may have changed beside, as text, such as learning rates. Gives what the chief says.
  ChiefSays call(const char* hook, FunctionRef<void(Callback&)> call, FunctionRef<std::string()> state,
                 const ChiefSays& mine);
  /// Notes what the callback that is running asks of the trainer.
  void note(const std::string& asked);
  /// Gives the error to all callbacks but the one that threw it.
  void fail(const std::exception_ptr& error) noexcept;

  /// What the callbacks' state() gives, by their names.
  nlohmann::json state() const;
  /// Gives each callback what state() had for it.
  void load(const nlohmann::json& states);

  const std::vector<std::shared_ptr<Callback>>& callbacks() const { return callbacks_; }
  /// The name of the callback that is being called, with a number where it is not the first of its name.
  const std::string& running_name() const { return names_[running_]; }

 private:
  ChiefSays agree(const char* hook, const ChiefSays& mine);

  Strategy& strategy_;
  const bool is_alone_;  // nobody is to be told
  const std::vector<std::shared_ptr<Callback>> callbacks_;
  std::vector<std::string> names_;
  std::vector<std::string> asked_;  // since the last round
  std::size_t running_ = 0;         // the callback that is being called, or was called last
  bool threw_ = false;              // whether that one has thrown
};

}  // namespace lockstep::internal::train
