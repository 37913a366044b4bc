#include "lockstep/server/remote/task_process.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/version.h"

namespace lockstep::internal::inline server {

namespace {

/// The chief itself waits so long for all tasks; its word may come a little later.
constexpr std::chrono::seconds kGrace{5};

int32_t server_of(const TaskId& self) {
  return self.job == TaskId::Job::kServer ? static_cast<int32_t>(self.task) : -1;
}

}  // namespace

std::string RemoteSetup::program() const {
  std::string text = fmt::format("Lockstep {}\n{}\nfingerprint {}\nseed {}\nstaleness {}\nwire {}\n.lost {} ms\n",
                                 LOCKSTEP_VERSION, platform_description(), platform_fingerprint(), strategy.seed(),
                                 chief.staleness ? std::to_string(*chief.staleness) : "unbounded",
                                 rounds_gradients ? "bfloat16" : "exact", join.timeouts.lost.count());
  text += catalog.text();
  for (const std::string& one : StrategyAccess::optimizer_texts(strategy)) text += one + "\n";
  for (const std::string& one : StrategyAccess::schedule_texts(strategy)) text += fmt::format("{}{}\n", kSchedule, one);
  for (const NamedStep& one : steps) text += fmt::format("step '{}'\n", one.name);
  for (std::size_t i = 0; i < trainers.size(); ++i) text += fmt::format("Trainer {}: {}\n", i, trainers[i]);
  for (std::size_t i = 0; i < data_sets.size(); ++i) text += fmt::format("{} {}: {}\n", kDataSet, i, data_sets[i]);
  return text;
}

PeerError lost_task(const TaskHello& peer, const std::string& why, const char* consequence) {
  return {
      "LS-PEER-LOST",
      fmt::format("{} is lost: {}; {}", peer.name(), why, consequence),
      "look at that task's own message; `lockstep run --max-restarts` starts the run again from its last checkpoint",
      {.worker = peer.from.job == TaskId::Job::kWorker ? peer.from.task : -1,
       .host = peer.host,
       .process = peer.process,
       .noticed = PeerError::Noticed::kGone}};
}

TaskProcess::TaskProcess(const RemoteSetup& setup, const TaskPlace& place)
    : setup_(setup),
      place_(place),
      payloads_(setup.catalog, server_of(place.job.self), setup.chief.servers, setup.rounds_gradients),
      network_(place.job) {}

TaskWelcome TaskProcess::meet_chief() {
  const Clock::time_point end = Clock::now() + setup_.join.timeouts.join;
  network_.connect({.job = TaskId::Job::kChief}, place_.chief, place_.chief_port, end);
  const std::string self = place_.job.self.name();
  while (const auto event = network_.next(end + kGrace)) {
    switch (event->kind) {
      case TaskEvent::Kind::kConnected:
        if (event->peer.from.job != TaskId::Job::kChief) break;
        chief_link_ = event->link;
        chief_ = event->peer;
        network_.send(chief_link_, message_of_task(TaskWord::kProgram, setup_.program()));
        break;
      case TaskEvent::Kind::kUnreachable: {
        const std::string fact =
            fmt::format("{} cannot join the chief at {}: {}", self, setup_.cluster.chief_address(), event->text);
        const char* const remedy = "start the chief, with the same cluster and secret as this task";
        if (event->refusal == kDiffers) throw ClusterError("LS-CLUSTER-DIFFERS", fact, remedy);
        if (event->refusal == kTaken) throw ClusterError("LS-CLUSTER-TAKEN", fact, "end the other process");
        throw ClusterError("LS-CLUSTER-JOIN", fact, remedy);
      }
      case TaskEvent::Kind::kLost:
        // That of an earlier coordinate() of the chief, say, which has ended: it listens again for the next one.
        if (is_chief(*event)) network_.connect({.job = TaskId::Job::kChief}, place_.chief, place_.chief_port, end);
        break;
      case TaskEvent::Kind::kReceived: {
        if (!is_chief(*event)) break;
        std::string_view text = event->text;
        switch (take_word(text)) {
          case TaskWord::kWelcome: {
            TaskWelcome welcome = task_welcome(text);
            network_.set_run(welcome.epoch);
            return welcome;
          }
          case TaskWord::kRefused:
            throw ClusterError("LS-CLUSTER-DIFFERS", std::string(text),
                               "run the same program, with the same options, on all tasks");
          case TaskWord::kEnd: exit_code(task_end(text)); break;
          default: break;
        }
        break;
      }
    }
  }
  throw ClusterError("LS-CLUSTER-JOIN",
                     fmt::format("{} has waited {} s for the chief to bring all tasks together", self,
                                 std::chrono::duration_cast<std::chrono::seconds>(setup_.join.timeouts.join).count()),
                     "look at the chief's own message");
}

void TaskProcess::send_to_chief(const ChiefMessage& message) {
  auto& codec = payloads_;
  network_.send(chief_link_, to_bytes(message, codec, message_of_task(TaskWord::kProtocol)));
}

int32_t TaskProcess::exit_code(const TaskEnd& end) const {
  if (end.failure.empty()) return end.code;
  throw PeerError("LS-PEER", fmt::format("the run has ended: {}", end.failure), "look at what that task says itself");
}

}  // namespace lockstep::internal::server
