#include "lockstep/comm/tasks/task_hello.h"

#include <fmt/format.h>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline comm {

namespace {

/// The first byte: it changes with what follows.
constexpr uint8_t kVersion = 1;
constexpr int64_t kMostTasksOfJob = 65536;

void put(ByteWriter& to, const TaskId& id) {
  to.put(static_cast<uint8_t>(id.job));
  to.put(id.task);
}

bool get(ByteReader& from, TaskId& id) {
  uint8_t job = 0;
  if (!from.get(job) || job > static_cast<uint8_t>(TaskId::Job::kServer) || !from.get(id.task)) return false;
  id.job = static_cast<TaskId::Job>(job);
  return id.task >= 0 && id.task < kMostTasksOfJob;
}

}  // namespace

std::string TaskId::name() const {
  switch (job) {
    case Job::kChief: return "the chief";
    case Job::kWorker: return fmt::format("worker {}", task);
    case Job::kServer: break;
  }
  return fmt::format("server {}", task);
}

std::string TaskHello::name() const { return fmt::format("{} (process {} on host {})", from.name(), process, host); }

std::string encode(const TaskHello& hello) {
  std::string bytes;
  ByteWriter to(bytes);
  to.put(kVersion);
  put(to, hello.from);
  put(to, hello.to);
  to.put(hello.workers);
  to.put(hello.servers);
  to.put(uint8_t{hello.plaintext});
  to.put(hello.run);
  to.put(hello.process);
  to.put(hello.port);
  to.put_text(hello.host);
  to.put_text(hello.address);
  return bytes;
}

std::optional<TaskHello> decode_task_hello(const std::string& text) {
  ByteReader from(text);
  TaskHello hello;
  uint8_t version = 0;
  uint8_t plaintext = 0;
  std::string_view host;
  std::string_view address;
  const bool is_sound = from.get(version) && version == kVersion && get(from, hello.from) && get(from, hello.to) &&
                        from.get(hello.workers) && from.get(hello.servers) && from.get(plaintext) && plaintext <= 1 &&
                        from.get(hello.run) && from.get(hello.process) && from.get(hello.port) && from.get_text(host) &&
                        from.get_text(address) && from.at_end();
  if (!is_sound) return std::nullopt;
  hello.plaintext = plaintext == 1;
  hello.host = host;
  hello.address = address;
  return hello;
}

}  // namespace lockstep::internal::comm
