// What tasks that are processes tell each other around the protocol's messages: who they are, and how the run ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/server/protocol/chief_machine.h"

namespace lockstep::internal::inline server {

/// The first byte of a message between tasks.
enum class TaskWord : uint8_t {
  kProgram,     // to the chief, and to a server from a worker, first: what the program has made
  kRefused,     // from the chief: why the task cannot take part
  kWelcome,     // from the chief: a TaskWelcome
  kProtocol,    // a message of the protocol
  kEvaluation,  // the same, of the chief of evaluations and its workers
  kSettled,     // to a worker: all steps below this number are decided
  kFailed,      // from a server: an error that ends the run
  kEnd,         // from the chief: a TaskEnd
};

/// How a task begins.
struct TaskWelcome {
  uint64_t epoch = 0;
  uint32_t incarnation = 0;  // of a worker
  ChiefCut begin = {};
  struct Place {
    std::string address = {};
    uint16_t port = 0;
  };
  std::vector<Place> servers = {};  // for a worker
};

/// How the run ends.
struct TaskEnd {
  int32_t code = 0;
  /// Why the run has failed; empty where the chief's coordinate() has ended by itself.
  std::string failure = {};
};

std::string message_of_task(TaskWord word, std::string_view text = {});
std::string to_bytes(const TaskWelcome& welcome);
std::string to_bytes(const TaskEnd& end);
/// Each throws a PeerError (LS-PEER-MESSAGE) where the bytes are none. A message has a word, which is taken off.
TaskWord take_word(std::string_view& message);
TaskWelcome task_welcome(std::string_view bytes);
TaskEnd task_end(std::string_view bytes);
std::string settled_message(int64_t settled);
int64_t settled_of(std::string_view bytes);

/// Begins the line of a data set. These lines come last, and either side may have more of them.
inline constexpr std::string_view kDataSet = "data set";
/// Begins the line of an optimizer's schedule.
inline constexpr std::string_view kSchedule = "schedule: ";
/// Why `theirs` is not the program `mine`: the first lines that differ, of both. Empty where it is.
std::string difference_of_programs(const std::string& theirs, const std::string& mine, const std::string& them);
/// The program without lines of schedules.
std::string without_schedules(const std::string& program);

}  // namespace lockstep::internal::server
