// A server that is a process.
#pragma once

#include <map>
#include <memory>

#include "lockstep/server/protocol/server_machine.h"
#include "lockstep/server/remote/server_values.h"
#include "lockstep/server/remote/task_process.h"

namespace lockstep::internal::inline server {

/// The program's thread does all: it takes messages, works the machine, and changes the values.
class ServerProcess final : public TaskProcess {
 public:
  ServerProcess(const RemoteSetup& setup, const TaskPlace& place) : TaskProcess(setup, place) {}

  /// Serves until the run ends; gives the exit code. A PeerError where the chief is lost, or the run fails.
  int32_t serve();

 private:
  /// True where the run has ended: then end_ says how.
  bool take(const TaskEvent& event);
  void take_message(const TaskEvent& event, std::string_view text);
  void read_entries();
  void carry(ServerOutput& out);

  std::unique_ptr<ServerValues> values_;
  std::unique_ptr<ServerMachine> machine_;
  std::map<int64_t, uint64_t> workers_;  // their links
  TaskEnd end_;
};

}  // namespace lockstep::internal::server
