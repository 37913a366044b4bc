// Who a task of a run of parameter servers is, as tasks tell each other when they connect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::internal::inline comm {

/// A task of a run of parameter servers.
struct TaskId {
  enum class Job : uint8_t { kChief, kWorker, kServer };
  Job job = Job::kChief;
  int64_t task = 0;
  auto operator<=>(const TaskId&) const = default;

  /// "the chief", "worker 3", "server 0"
  std::string name() const;
};

/// What a task says on a new connection.
struct TaskHello {
  TaskId from = {};
  TaskId to = {};  // for whom the connection is
  int64_t workers = 0;
  int64_t servers = 0;
  bool plaintext = false;
  uint64_t run = 0;  // which the sender belongs to; 0: not known yet
  int64_t process = 0;
  std::string host = {};     // its name, for messages
  std::string address = {};  // where it listens; empty for a worker
  uint16_t port = 0;
  bool operator==(const TaskHello&) const = default;

  /// "worker 3 (process 77 on host b)"
  std::string name() const;
};

/// As the text of a frame, and back; nothing for a text that encode() does not make.
std::string encode(const TaskHello& hello);
std::optional<TaskHello> decode_task_hello(const std::string& text);

}  // namespace lockstep::internal::comm
