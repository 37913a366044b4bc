// A task of a run that is a process and serves the chief: how it meets the others, and how it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "lockstep/comm/tasks/task_place.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/protocol/chief_machine.h"
#include "lockstep/server/remote/catalog.h"
#include "lockstep/server/remote/payload_codec.h"
#include "lockstep/server/remote/task_messages.h"
#include "lockstep/server/step_call.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

/// What a task of a run needs to take part. It outlives the task.
struct RemoteSetup {
  Strategy& strategy;
  std::shared_ptr<StrategyGate> gate;
  ClusterSpec cluster;
  JoinOptions join = {};
  ChiefOptions chief = {};
  std::vector<NamedStep> steps = {};  // by kind
  Catalog catalog;
  std::vector<std::string> data_sets = {};        // how each is dealt, in order of creation
  std::vector<std::string> trainers = {};         // the options of each
  bool owns_schedules = false;                    // the chief's are its own: other tasks need not have them
  std::map<const void*, int64_t>& batch_indexes;  // by data set, of a worker: ScheduledBatches
  bool rounds_gradients = false;                  // to bfloat16, those of float32

  bool in_rounds() const { return chief.staleness == 0; }
  int64_t parts() const { return in_rounds() ? chief.workers : 1; }  // of a round
  /// One line for each fact that must be equal on all tasks.
  std::string program() const;
};

/// The error of a task that has lost another one.
PeerError lost_task(const TaskHello& peer, const std::string& why, const char* consequence);

/// A worker or a server. One thread, the program's, makes and uses it.
class TaskProcess {
 public:
  virtual ~TaskProcess() = default;
  TaskProcess(const TaskProcess&) = delete;
  TaskProcess& operator=(const TaskProcess&) = delete;

 protected:
  using Clock = TaskNetwork::Clock;

  TaskProcess(const RemoteSetup& setup, const TaskPlace& place);

  /// Finds the chief, and waits until it lets this task take part. A ClusterError where it cannot (LS-CLUSTER-JOIN) or
  /// may not (LS-CLUSTER-DIFFERS).
  TaskWelcome meet_chief();
  void send_to_chief(const ChiefMessage& message);
  /// The exit code that the chief's last message gives. A PeerError (LS-PEER) where the run has failed.
  int32_t exit_code(const TaskEnd& end) const;
  bool is_chief(const TaskEvent& event) const { return event.link == chief_link_; }

  const RemoteSetup& setup_;
  const TaskPlace place_;
  RemotePayloads payloads_;
  TaskNetwork network_;
  uint64_t chief_link_ = 0;
  TaskHello chief_ = {};
};

}  // namespace lockstep::internal::server
