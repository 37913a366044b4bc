// The order of events: the worker meets the chief, and then the servers, whose places the chief tells. From then on the
// program's thread hands each message to the task, whose thread sends its own messages by itself.
#include "lockstep/server/remote/worker_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {

std::optional<int32_t> WorkerProcess::meet_servers(const TaskWelcome& welcome) {
  const Clock::time_point end = Clock::now() + setup_.join.timeouts.join;
  if (static_cast<int64_t>(welcome.servers.size()) != place_.job.servers) {
    throw PeerError("LS-PEER-MESSAGE", "the chief named other servers than the cluster has",
                    "start all tasks with the same version of Lockstep");
  }
  servers_.assign(welcome.servers.size(), 0);
  const auto look_for = [&](std::size_t s) {
    const TaskId server{.job = TaskId::Job::kServer, .task = static_cast<int64_t>(s)};
    network_.connect(server, {welcome.servers[s].address}, welcome.servers[s].port, end);
  };
  for (std::size_t s = 0; s < servers_.size(); ++s) look_for(s);
  while (std::ranges::find(servers_, uint64_t{0}) != servers_.end()) {
    const auto event = network_.next(end);
    if (!event || event->kind == TaskEvent::Kind::kUnreachable) {
      throw ClusterError("LS-CLUSTER-UNREACHABLE",
                         event
                             ? fmt::format("{} cannot reach {} at {}, port {}: {}", place_.job.self.name(),
                                           event->peer.from.name(), event->peer.address, event->peer.port, event->text)
                             : fmt::format("{} cannot reach all servers in time", place_.job.self.name()),
                         "open the firewalls between the hosts, or choose the network that connects them by "
                         "LOCKSTEP_INTERFACE");
    }
    if (event->kind == TaskEvent::Kind::kConnected) {
      servers_[static_cast<std::size_t>(event->peer.from.task)] = event->link;
      network_.send(event->link, message_of_task(TaskWord::kProgram));
    } else if (event->kind == TaskEvent::Kind::kLost) {
      if (is_chief(*event)) throw lost_task(chief_, event->text, "this worker ends");
      // Where the server has ended, the chief says so.
      const auto server = static_cast<std::size_t>(event->peer.from.task);
      servers_[server] = 0;
      look_for(server);
    } else if (is_chief(*event)) {
      std::string_view text = event->text;
      if (take_word(text) == TaskWord::kEnd) return exit_code(task_end(text));
      early_.push_back(*event);
    }
  }
  return std::nullopt;
}

int32_t WorkerProcess::serve() {
  const TaskWelcome welcome = meet_chief();
  if (const auto code = meet_servers(welcome)) return *code;  // the run has ended meanwhile
  const int64_t first = (welcome.begin.floor + setup_.parts() - 1) / setup_.parts();
  ScheduledBatches batches(first, setup_.batch_indexes);
  batches.forget_below(first);
  StreamPlaces places({});
  const auto function = [this](uint32_t kind) -> StepFunction {
    if (kind >= setup_.steps.size()) throw_other_step_value();
    return [&step = setup_.steps[kind]](WorkerContext& context, const Payload& arguments) {
      static const StepValues none;
      return step.call(context, arguments ? as<StepValues>(arguments) : none);
    };
  };
  WorkersShared shared{
      .strategy = setup_.strategy,
      .function = function,
      .to_server =
          [this](const ToServer& one) {
            network_.send(servers_[static_cast<std::size_t>(one.server)],
                          to_bytes(one.message, payloads_, message_of_task(TaskWord::kProtocol)));
          },
      .to_chief = [this](const ChiefMessage& one) { send_report(one, TaskWord::kProtocol, payloads_); },
      .to_evaluation =
          [this](const ChiefMessage& one) { send_report(one, TaskWord::kEvaluation, evaluation_payloads_); },
      .evaluate =
          [this](uint32_t kind) {
            if (kind >= setup_.steps.size() || !setup_.steps[kind].evaluate) throw_other_step_value();
            return setup_.steps[kind].evaluate;
          },
      .batches = batches,
      .places = places,
      .gate = setup_.gate.get(),
      .workers = setup_.chief.workers,
      .in_rounds = setup_.in_rounds(),
      .placement = {.servers = setup_.chief.servers,
                    .parts_of = [this](const VariableState& one) -> const std::vector<VariablePart>& {
                      return setup_.catalog.parts_of(one);
                    }},
      .epoch = welcome.epoch,
      .rounds_gradients = setup_.rounds_gradients};
  WorkerTask task(shared, static_cast<int32_t>(place_.job.self.task), welcome.incarnation);
  const int32_t code = carry_messages(task, batches, places);
  network_.close(chief_link_);
  task.stop();
  return code;
}

void WorkerProcess::send_report(const ChiefMessage& message, TaskWord word, PayloadCodec& codec) {
  const auto send = [&](const ChiefMessage& one) {
    network_.send(chief_link_, to_bytes(one, codec, message_of_task(word)));
  };
  try {
    send(message);
  } catch (const std::exception&) {  // the step has returned what does not travel
    StepReport report = std::get<StepReport>(message);
    report.outcome = StepOutcome::kFailed;
    report.payload = std::make_shared<StepFailure>(StepFailure{std::current_exception()});
    send(report);
  }
}

int32_t WorkerProcess::carry_messages(WorkerTask& task, ScheduledBatches& batches, StreamPlaces& places) {
  // The chief knows more of a server that is lost, and says it, unless it is the chief that all have lost.
  std::optional<PeerError> lost;
  Clock::time_point end = Clock::time_point::max();
  while (true) {
    std::optional<TaskEvent> event;
    if (early_.empty()) {
      event = network_.next(lost ? end : Clock::now() + std::chrono::hours(1));
    } else {
      event = std::move(early_.front());
      early_.pop_front();
    }
    if (!event) {
      if (lost && Clock::now() >= end) throw *lost;
      continue;
    }
    if (event->kind == TaskEvent::Kind::kLost) {
      if (is_chief(*event)) throw lost_task(chief_, event->text, "this worker ends");
      if (lost) continue;
      lost = lost_task(event->peer, event->text, "this worker cannot go on");
      end = Clock::now() + place_.job.lost;
    }
    if (event->kind != TaskEvent::Kind::kReceived) continue;
    std::string_view text = event->text;
    switch (take_word(text)) {
      case TaskWord::kProtocol: {
        const WorkerMessage message = worker_message(text, payloads_);
        require_payloads(message);
        task.put(message);
        break;
      }
      case TaskWord::kEvaluation: {
        if (!is_chief(*event)) break;
        const WorkerMessage message = worker_message(text, evaluation_payloads_);
        require_evaluation(message);
        task.put_of_evaluation(message);
        break;
      }
      case TaskWord::kSettled: {
        const int64_t settled = settled_of(text);
        batches.forget_below(settled / setup_.parts());
        places.decided_below(settled);
        break;
      }
      case TaskWord::kEnd: {
        if (!is_chief(*event)) break;
        return exit_code(task_end(text));
      }
      default: break;
    }
  }
}

}  // namespace lockstep::internal::server
