#include "lockstep/train/hooks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/equal_texts.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline train {

namespace {

/// Workers compare a digest of what was asked, and send the text itself only where digests differ.
std::string encoded(uint64_t digest, const ChiefSays& says) {
  return fmt::format("{:016x}{}{}{}", digest, says.is_time_over ? 1 : 0, says.is_save_due ? 1 : 0, says.next_in);
}

// The words of errors that may come to other workers in any of their calls.
constexpr const char* kThrew = "the callback '";
constexpr const char* kAskedAlone = ", where callbacks have done this: ";

UsageError differing_callbacks(const std::string& fact) {
  return UsageError("LS-CALLBACK-DIFFERS", fact,
                    "decide by logs, which are equal on all workers, or by what strategy.on_chief() gives");
}

/// The error that a ReplicaError is nested on; any other error as it is.
std::exception_ptr without_replica(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ReplicaError& of_replica) {
    return of_replica.nested_ptr() ? of_replica.nested_ptr() : error;
  } catch (...) {
    return error;
  }
}

bool has(std::string_view text, std::string_view piece) { return text.find(piece) != std::string_view::npos; }

/// Of a text with a code and a remedy, what has happened.
std::string fact_of(const Error& error) {
  const std::string text = error.what();
  return text.substr(0, text.find(fmt::format(" [{}]", error.code())));
}

}  // namespace

std::exception_ptr as_of_callback(const std::exception_ptr& error) noexcept {
  try {
    const std::exception_ptr inner = without_replica(error);
    try {
      std::rethrow_exception(inner);
    } catch (const PeerError& peer) {
      return peer.failed().replica < 0 && has(peer.what(), kThrew) ? inner : error;
    } catch (const UsageError& usage) {
      if (usage.code() != "LS-WORKER-ORDER" || !has(usage.what(), kAskedAlone)) return error;
      return std::make_exception_ptr(differing_callbacks(fact_of(usage)));
    } catch (...) {
      return error;
    }
  } catch (...) {  // no memory
    return error;
  }
}

void tell_failure(const Strategy& strategy, const char* call, const std::string& what,
                  const std::exception_ptr& own) noexcept {
  Rounds& rounds = StrategyAccess::rounds(strategy);
  if (strategy.num_workers() == 1 || rounds.failure()) return;
  try {
    propose(rounds, {.state = Proposal::State::kFailed, .call = call, .step = strategy.step(), .detail = what}, own);
  } catch (...) {  // this worker has its own error
  }
}

Hooks::Hooks(Strategy& strategy, std::vector<std::shared_ptr<Callback>> callbacks)
    : strategy_(strategy), is_alone_(strategy.num_workers() == 1), callbacks_(std::move(callbacks)) {
  std::map<std::string, int> uses;
  for (const auto& callback : callbacks_) {
    std::string name = callback->name();
    if (const int before = uses[name]++; before > 0) name += fmt::format(" {}", before + 1);
    names_.push_back(std::move(name));
  }
}

void Hooks::note(const std::string& asked) {
  asked_.push_back(is_calling_ ? fmt::format("'{}' asked {}", names_[running_], asked) : asked);
}

std::optional<ChiefSays> Hooks::call(const char* hook, FunctionRef<void(Callback&)> call,
                                     FunctionRef<std::string()> state, FunctionRef<ChiefSays()> mine, Meet meet) {
  // Nobody is there who could ask for something: after each step of a fit that nobody watches.
  if (meet == Meet::kWhereAsked && callbacks_.empty() && asked_.empty()) return std::nullopt;
  Rounds& rounds = StrategyAccess::rounds(strategy_);
  std::exception_ptr own;
  std::string before;
  if (!is_alone_) {
    rounds.begin();  // forgets a failure of before
    before = state();
  }
  {
    // The others wait for this worker's callbacks as for any work.
    std::optional<WorkScope> work;
    if (!is_alone_) work.emplace(rounds, WorkerPhase::Kind::kFunction, strategy_.step());
    is_calling_ = true;
    for (std::size_t i = 0; i < callbacks_.size() && !own; ++i) {
      running_ = i;
      try {
        call(*callbacks_[i]);
      } catch (...) {
        own = as_of_callback(std::current_exception());
        threw_ = true;
        log(LogLevel::kError, fmt::format("step {}: the callback '{}' threw in {}: {}", strategy_.step(), names_[i],
                                          hook, message_of(own)));
      }
    }
    is_calling_ = false;
  }
  if (own) {
    tell_failure(strategy_, hook, fmt::format("{}{}' threw in {}: {}", kThrew, names_[running_], hook, message_of(own)),
                 own);
    std::rethrow_exception(own);
  }
  if (is_alone_) {
    asked_.clear();
    if (meet == Meet::kWhereAsked) return std::nullopt;
    return mine();
  }
  std::string after = state();
  if (meet == Meet::kWhereAsked && asked_.empty() && after == before) return std::nullopt;
  asked_.push_back(std::move(after));
  return agree(hook, mine(), meet);
}

ChiefSays Hooks::agree(const char* hook, const ChiefSays& mine, Meet meet) {
  Rounds& rounds = StrategyAccess::rounds(strategy_);
  const std::string asked = fmt::format("{}", fmt::join(std::exchange(asked_, {}), ", "));
  const uint64_t digest = Digest().with(asked).value();
  rounds.begin();
  Proposal proposal{.call = hook, .step = strategy_.step()};
  // The text is for workers that make another call instead.
  if (meet == Meet::kWhereAsked) proposal.detail = fmt::format("{}{}{}", hook, kAskedAlone, asked);
  std::vector<Proposal> all;
  try {
    all = agree_on_call(rounds, proposal, [&](Proposal& told) { told.data = encoded(digest, mine); });
  } catch (...) {
    std::rethrow_exception(as_of_callback(std::current_exception()));
  }
  const std::string& chief = all.front().data;
  bool are_equal = true;
  for (const Proposal& one : all) are_equal = are_equal && one.data.substr(0, 16) == chief.substr(0, 16);
  if (!are_equal) {
    std::vector<std::string> said;
    for (const Proposal& one : agree_on_call(rounds, proposal, [&](Proposal& told) {
           told.data = asked.empty() ? "nothing" : asked.substr(0, kLongestDetail);
         })) {
      said.push_back(one.data);
    }
    throw differing_callbacks(fmt::format("step {}: in {}, callbacks do not ask the same on all workers: {}",
                                          strategy_.step(), hook, text_of_sides(said, "on")));
  }
  return {chief.at(16) == '1', chief.at(17) == '1', std::stoll(chief.substr(18))};
}

void Hooks::fail(const std::exception_ptr& error) noexcept {
  const auto give = [&](const std::exception& to_all) {
    for (std::size_t i = 0; i < callbacks_.size(); ++i) {
      if (threw_ && i == running_) continue;
      try {
        callbacks_[i]->on_fit_fail(to_all);
      } catch (const std::exception& another) {
        log(LogLevel::kError, fmt::format("the callback '{}' threw in on_fit_fail: {}", names_[i], another.what()));
      } catch (...) {
        log(LogLevel::kError, fmt::format("the callback '{}' threw in on_fit_fail", names_[i]));
      }
    }
  };
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    give(known);
  } catch (...) {
    give(std::runtime_error("an exception that is no std::exception"));
  }
}

nlohmann::json Hooks::state() const {
  nlohmann::json states = nlohmann::json::object();
  for (std::size_t i = 0; i < callbacks_.size(); ++i) {
    if (nlohmann::json state = callbacks_[i]->state(); !state.is_null()) states[names_[i]] = std::move(state);
  }
  return states;
}

void Hooks::load(const nlohmann::json& states) {
  for (std::size_t i = 0; i < callbacks_.size(); ++i) {
    const auto found = states.find(names_[i]);
    if (found == states.end()) continue;
    try {
      callbacks_[i]->load(*found);
    } catch (const nlohmann::json::exception& error) {
      throw UsageError(
          "LS-CHECKPOINT-MISFIT",
          fmt::format("the callback '{}' cannot take what the checkpoint has for it: {}", names_[i], error.what()),
          "resume with the callbacks of the run that has saved it, or begin in another folder");
    }
  }
}

}  // namespace lockstep::internal::train
