// A worker that is a process.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "lockstep/server/local/scheduled_batches.h"
#include "lockstep/server/local/worker_task.h"
#include "lockstep/server/remote/evaluation_codec.h"
#include "lockstep/server/remote/task_process.h"

namespace lockstep::internal::inline server {

/// The program's thread carries messages, and a WorkerTask has the thread that runs steps.
class WorkerProcess final : public TaskProcess {
 public:
  WorkerProcess(const RemoteSetup& setup, const TaskPlace& place)
      : TaskProcess(setup, place), evaluation_payloads_(setup.catalog, setup.parts(), setup.strategy.seed()) {}

  /// Serves until the run ends; gives the exit code. A PeerError where the chief or a server is lost, or the run fails.
  int32_t serve();

 private:
  /// The exit code, where the run ends meanwhile.
  std::optional<int32_t> meet_servers(const TaskWelcome& welcome);
  int32_t carry_messages(WorkerTask& task, ScheduledBatches& batches, StreamPlaces& places);
  /// A report whose result cannot be sent becomes that of a step that failed.
  void send_report(const ChiefMessage& message, TaskWord word, PayloadCodec& codec);

  EvaluationPayloads evaluation_payloads_;
  std::vector<uint64_t> servers_;  // their links
  std::deque<TaskEvent> early_;    // of the chief, which came while servers were looked for
};

}  // namespace lockstep::internal::server
