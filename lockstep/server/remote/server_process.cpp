#include "lockstep/server/remote/server_process.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/server/remote/tensor_bytes.h"

namespace lockstep::internal::inline server {

int32_t ServerProcess::serve() {
  const CallerScope as_task(Caller::kTask);
  warm_up_math();
  const auto failed = [this](const std::exception_ptr& error) {
    std::string text;
    put_error(text, error);
    network_.send(chief_link_, message_of_task(TaskWord::kFailed, text));
  };
  const TaskWelcome welcome = meet_chief();
  const auto self = static_cast<int32_t>(place_.job.self.task);
  values_ = std::make_unique<ServerValues>(setup_.strategy, setup_.gate, setup_.catalog, welcome.begin.counted,
                                           setup_.in_rounds(), self, setup_.chief.servers, failed);
  machine_ = std::make_unique<ServerMachine>(welcome.epoch, self, welcome.begin.position, welcome.begin.floor,
                                             decided_above(welcome.begin));
  try {
    while (true) {
      auto event = network_.next(Clock::now() + std::chrono::hours(1));
      for (; event; event = network_.next(Clock::time_point())) {  // pulls are answered before entries are read
        if (take(*event)) return exit_code(end_);
      }
      read_entries();
    }
  } catch (const InternalError&) {
    failed(std::current_exception());
    throw;
  }
}

bool ServerProcess::take(const TaskEvent& event) {
  const int64_t peer = event.peer.from.task;
  switch (event.kind) {
    case TaskEvent::Kind::kConnected: workers_[peer] = event.link; return false;
    case TaskEvent::Kind::kUnreachable: return false;
    case TaskEvent::Kind::kLost:
      if (is_chief(event)) throw lost_task(chief_, event.text, "this server ends");
      if (const auto found = workers_.find(peer); found != workers_.end() && found->second == event.link)
        workers_.erase(found);
      return false;
    case TaskEvent::Kind::kReceived: break;
  }
  std::string_view text = event.text;
  try {
    const TaskWord word = take_word(text);
    if (word == TaskWord::kEnd && is_chief(event)) {
      end_ = task_end(text);
      return true;
    }
    if (word == TaskWord::kProtocol) take_message(event, text);
  } catch (const PeerError& error) {
    if (is_chief(event)) throw;
    log(LogLevel::kWarning,
        fmt::format("{} closes its connection with {}: {}", place_.job.self.name(), event.peer.name(), error.what()));
    network_.close(event.link);
  }
  return false;
}

void ServerProcess::take_message(const TaskEvent& event, std::string_view text) {
  const ServerMessage message = server_message(text, is_chief(event) ? -1 : event.peer.from.task, payloads_);
  require_payloads(message);
  const auto is_from_sender = [&](const auto& one) {
    using T = std::decay_t<decltype(one)>;
    if constexpr (std::is_same_v<T, LogEntries>) {
      return is_chief(event);
    } else {
      return !is_chief(event) && one.from.worker == event.peer.from.task;
    }
  };
  if (!std::visit(is_from_sender, message)) {
    throw PeerError("LS-PEER-MESSAGE", fmt::format("{} sent a message in another task's name", event.peer.name()),
                    "start all tasks with the same version of Lockstep");
  }
  ServerOutput out;
  machine_->receive(message, *values_, out);
  carry(out);
}

void ServerProcess::read_entries() {
  ServerOutput out;
  bool has_read = false;
  while (machine_->has_entries()) {
    machine_->read_entry(*values_, out);
    if (auto frozen = values_->take_frozen()) machine_->saved(frozen->cut, std::move(frozen->saved), out);
    carry(out);
    has_read = true;
  }
  if (!has_read) return;
  machine_->report(out);
  carry(out);
}

void ServerProcess::carry(ServerOutput& out) {
  for (const ToWorker& one : out.to_workers) {
    const auto found = workers_.find(one.worker.worker);
    if (found == workers_.end()) continue;
    network_.send(found->second, to_bytes(one.message, payloads_, message_of_task(TaskWord::kProtocol)));
  }
  for (const ChiefMessage& one : out.to_chief) send_to_chief(one);
  out = {};
}

}  // namespace lockstep::internal::server
