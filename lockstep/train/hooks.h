// How a fit calls its callbacks: in their order, with what they ask compared over all workers, and with one end for all
// where one of them throws.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/callback.h"

namespace lockstep::internal::inline train {

/// What the chief tells the others where they meet after callbacks: what depends on its clock.
struct ChiefSays {
  bool is_time_over = false;
  bool is_save_due = false;
  int64_t next_in = 1;  // steps, after which the workers ask it again
};

/// Whether workers meet after a hook.
enum class Meet : uint8_t {
  kAlways,
  /// Where a callback has asked for something, or has changed the state. Workers of which only some have something to
  /// compare then make other calls than the rest, which is an error on all.
  kWhereAsked,
};

/// Where `error` comes from a call of this worker, and another worker's callback is its reason, says so as that: what
/// the callback threw is a PeerError, and what it asked alone is LS-CALLBACK-DIFFERS. Otherwise gives `error` back.
std::exception_ptr as_of_callback(const std::exception_ptr& error) noexcept;

/// Lets the next call of the other workers fail, because this worker has left the fit with `own`, where they do not
/// know that already.
void tell_failure(const Strategy& strategy, const char* call, const std::string& what,
                  const std::exception_ptr& own) noexcept;

class Hooks {
 public:
  Hooks(Strategy& strategy, std::vector<std::shared_ptr<Callback>> callbacks);

  /// Calls `hook` for each callback in order. Then the workers compare what was asked meanwhile, if they meet, and this
  /// gives what the chief says; nothing where they do not. Where a callback has thrown, its error is thrown here, and
  /// the next call of the other workers fails with a PeerError that has its text.
  /// `state` is what the hooks may have changed beside, as text, such as learning rates. `mine` is what this worker
  /// would say as the chief.
  std::optional<ChiefSays> call(const char* hook, FunctionRef<void(Callback&)> call, FunctionRef<std::string()> state,
                                FunctionRef<ChiefSays()> mine, Meet meet);
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
  ChiefSays agree(const char* hook, const ChiefSays& mine, Meet meet);

  Strategy& strategy_;
  const bool is_alone_;  // nobody is to be told
  const std::vector<std::shared_ptr<Callback>> callbacks_;
  std::vector<std::string> names_;
  std::vector<std::string> asked_;  // since the last round
  bool is_calling_ = false;         // callbacks, and not the training step, which may ask too
  std::size_t running_ = 0;         // the callback that is being called, or was called last
  bool threw_ = false;              // whether that one has thrown
};

}  // namespace lockstep::internal::train
