// The values of a server that is a process: its own copy of the program's strategy, of which a part counts.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/server/local/values_store.h"
#include "lockstep/server/remote/shared_state.h"
#include "lockstep/server/remote/told_rates.h"

namespace lockstep::internal::inline server {

/// Each server runs the updates of what steps push to it on its copy. All of the copy is there, and only what lies on
/// this server is kept up to date: the rest of a cut variable is updated too, by gradients of zero, and never read.
/// What the chief changes, and what it wants to know, goes by SharedState.
class ServerValues final : public ServerStore {
 public:
  ServerValues(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const Catalog& catalog, int64_t counted,
               bool in_rounds, int32_t server, int32_t servers, std::function<void(std::exception_ptr)> failed);

  ~ServerValues() override;

  Payload hold(const HeldPush& push) override;
  void drop(const HeldPush& push) override { store_.drop(push); }
  void commit(const LogEntry& entry, const HeldPush& push) override { store_.commit(entry, push); }
  Payload squares(const LogEntry& entry, std::span<const HeldPush> parts) override;
  void round(const LogEntry& entry, std::span<const HeldPush> parts) override { store_.round(entry, parts); }
  void change(const LogEntry& entry) override;
  void freeze(const LogEntry& entry) override;
  void release(const LogEntry& /*entry*/) override {}
  Payload answer(const PullRequest& pull, Position position) override { return store_.answer(pull, position); }

  struct Frozen {
    int64_t cut = 0;
    Payload saved;
  };
  /// What freeze() has kept, once.
  std::optional<Frozen> take_frozen() { return std::exchange(frozen_, std::nullopt); }

 private:
  Strategy& strategy_;
  const std::shared_ptr<StrategyGate> gate_;
  const std::function<void(std::exception_ptr)> failed_;
  ValuesStore store_;
  std::optional<FollowedRates> rates_;
  SharedState state_;
  std::vector<Variable> elsewhere_;  // that lie on other servers: frozen here while this lives
  std::optional<Frozen> frozen_;
};

}  // namespace lockstep::internal::server
