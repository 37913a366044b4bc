// The order of events: the constructor waits until all tasks have come with the same program. Servers are welcome at
// once, and workers when all servers are there. The first entry of the log is the state of the chief's copy.
#include "lockstep/server/remote/chief_process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <variant>

#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/exit_codes.h"
#include "lockstep/server/local/push_parts.h"
#include "lockstep/server/remote/tensor_bytes.h"

namespace lockstep::internal::inline server {

namespace {

using Job = TaskId::Job;

/// A number that no other run has.
uint64_t fresh_epoch() {
  std::random_device device;
  return ((uint64_t{device()} << 32) | device()) | 1;
}

/// As the program has them; and servers that are slow get entries together.
ChiefOptions options_of(const RemoteSetup& setup) {
  ChiefOptions options = setup.chief;
  options.eager = 4;
  return options;
}

/// What the gradients of a round are multiplied by, by what all servers have of it.
double coefficient_of(const RoundSummed& summed) {
  double squares = 0;
  std::optional<double> clip;
  for (const Payload& one : summed.squares) {
    if (!one) continue;
    squares += as<SquaresOfRound>(one).squares;
    if (as<SquaresOfRound>(one).clip) clip = as<SquaresOfRound>(one).clip;
  }
  return clip ? clip_factor_of(squares, *clip) : 1;
}

}  // namespace

ChiefProcess::ChiefProcess(const RemoteSetup& setup, const TaskPlace& place, const ChiefCut& begin)
    : setup_(setup),
      place_(place),
      begin_(begin),
      epoch_(fresh_epoch()),
      program_(setup.program()),
      payloads_(setup.catalog, -1, setup.chief.servers, setup.rounds_gradients),
      evaluation_payloads_(setup.catalog, setup.parts(), setup.strategy.seed()),
      network_(place.job) {
  network_.set_run(epoch_);
  gather();
  const auto to_worker_by = [this](TaskWord word, PayloadCodec& codec) {
    return [this, word, &codec](const ToWorker& one) { to_worker(one, word, codec); };
  };
  chief_ = std::make_shared<ChiefTask>(options_of(setup_), begin, setup_.gate,
                                       TaskMail{.to_worker = to_worker_by(TaskWord::kProtocol, payloads_),
                                                .to_server = [this](const ToServer& one) { to_server(one); },
                                                .coefficient = coefficient_of},
                                       epoch_);
  evaluation_chief_ = std::make_shared<ChiefTask>(
      ChiefOptions{.workers = setup_.chief.workers, .servers = 0}, ChiefCut{.floor = kFirstEvaluated}, setup_.gate,
      TaskMail{.to_worker = to_worker_by(TaskWord::kEvaluation, evaluation_payloads_),
               .to_server = [](const ToServer& /*none*/) {}},
      epoch_);
  copy_.emplace(setup, *chief_, begin.counted);
  for (int64_t w = 0; w < place_.job.workers; ++w) welcome_worker(w);
  last_worker_ = Clock::now();
  thread_ = start_service_thread(0, "desk", [this] { run(); });
  setup_.gate->set_waits({.drain =
                              [this] {
                                chief_->wait_while_held_back();
                                chief_->drain();
                              },
                          .catch_up = [this] { copy_->refresh(); },
                          .begin_read = [this] { copy_->refresh(); }});
}

ChiefProcess::~ChiefProcess() {
  std::string failure;
  {
    const std::lock_guard<std::mutex> lock(peers_mutex_);
    failure = failure_text_;
  }
  end(static_cast<int32_t>(ExitCode::kRestartable), failure);  // the others end because of this one
  chief_->end();
  evaluation_chief_->end();
  is_over_ = true;
  network_.stop();
  thread_.join();
}

void ChiefProcess::end(int32_t code, const std::string& failure) {
  if (has_ended_.exchange(true)) return;
  setup_.gate->set_waits({});
  const std::string word = to_bytes(TaskEnd{.code = code, .failure = failure});
  std::unique_lock<std::mutex> lock(peers_mutex_);
  for (const auto& [id, one] : peers_) network_.send(one.link, word);
  gone_.wait_for(lock, setup_.join.timeouts.lost, [&] { return peers_.empty(); });
}

RunBegin ChiefProcess::next_begin() {
  const ChiefCut chief = chief_->next_begin();
  return {.chief = chief, .applied = chief.counted, .by_number = true};
}

// How the tasks come together.

std::string ChiefProcess::missing() const {
  std::vector<std::string> names;
  for (const auto& [job, count] :
       {std::pair(Job::kWorker, place_.job.workers), std::pair(Job::kServer, place_.job.servers)}) {
    for (int64_t task = 0; task < count; ++task) {
      const TaskId id{.job = job, .task = task};
      if (!peers_.contains(id)) names.push_back(id.name());
    }
  }
  constexpr std::size_t kShown = 20;
  if (names.size() > kShown) names.resize(kShown);
  return fmt::format("{}", fmt::join(names, ", "));
}

void ChiefProcess::gather() {
  const Clock::time_point end = Clock::now() + setup_.join.timeouts.join;
  const auto all = static_cast<std::size_t>(place_.job.workers + place_.job.servers);
  while (peers_.size() < all) {
    const auto event = network_.next(end);
    if (!event) break;
    if (event->kind == TaskEvent::Kind::kLost) {
      const auto found = peers_.find(event->peer.from);
      if (found != peers_.end() && found->second.link == event->link) peers_.erase(found);
    }
    if (event->kind != TaskEvent::Kind::kReceived) continue;
    std::string_view text = event->text;
    try {
      if (take_word(text) != TaskWord::kProgram || !is_same_program(*event, text)) continue;
    } catch (const PeerError& error) {
      log(LogLevel::kWarning,
          fmt::format("the chief closes its connection with {}: {}", event->peer.name(), error.what()));
      network_.close(event->link);
      continue;
    }
    peers_[event->peer.from] = {.link = event->link, .hello = event->peer};
    if (event->peer.from.job == Job::kServer)
      network_.send(event->link, to_bytes(TaskWelcome{.epoch = epoch_, .begin = begin_}));
  }
  if (peers_.size() == all) return;
  const std::string fact =
      fmt::format("these tasks have not joined the chief in {} s: {}{}",
                  std::chrono::duration_cast<std::chrono::seconds>(setup_.join.timeouts.join).count(), missing(),
                  refusal_.empty() ? "" : fmt::format("; {}", refusal_));
  for (const auto& [id, one] : peers_) {
    network_.send(one.link, to_bytes(TaskEnd{.code = static_cast<int32_t>(ExitCode::kRestartable), .failure = fact}));
    network_.close(one.link);
  }
  const Clock::time_point told = Clock::now() + std::chrono::seconds(1);
  for (std::size_t left = peers_.size(); left > 0;) {
    const auto event = network_.next(told);
    if (!event) break;
    if (event->kind == TaskEvent::Kind::kLost) --left;
  }
  throw ClusterError("LS-CLUSTER-JOIN", fact, "start all tasks, and look at the messages of these");
}

bool ChiefProcess::is_same_program(const TaskEvent& event, std::string_view program) {
  const std::string theirs(program);
  const std::string difference =
      setup_.owns_schedules
          ? difference_of_programs(without_schedules(theirs), without_schedules(program_), event.peer.name())
          : difference_of_programs(theirs, program_, event.peer.name());
  if (difference.empty()) return true;
  refusal_ = difference;
  log(LogLevel::kWarning, fmt::format("the chief refused a task: {}", difference));
  network_.send(event.link, message_of_task(TaskWord::kRefused, difference));
  network_.close(event.link);
  return false;
}

void ChiefProcess::welcome_worker(int64_t worker) {
  chief_->worker_joined(static_cast<int32_t>(worker), [&](uint32_t incarnation) {
    const std::lock_guard<std::mutex> lock(peers_mutex_);
    TaskWelcome welcome{.epoch = epoch_, .incarnation = incarnation, .begin = begin_};
    for (int64_t s = 0; s < place_.job.servers; ++s) {
      const TaskHello& hello = peers_[{.job = Job::kServer, .task = s}].hello;
      welcome.servers.push_back({.address = hello.address, .port = hello.port});
    }
    Peer& peer = peers_[{.job = Job::kWorker, .task = worker}];
    peer.incarnation = incarnation;
    network_.send(peer.link, to_bytes(welcome));
  });
  evaluation_chief_->worker_joined(static_cast<int32_t>(worker));  // as the same incarnation: both count alike
}

// What the program calls.

void ChiefProcess::before_schedule(const StepCall& call) {
  for (const StepInput& one : call.inputs) {
    const auto* const value = std::get_if<StepValue>(&one);
    const auto* const tensor = value ? std::get_if<at::Tensor>(value) : nullptr;
    if (tensor != nullptr) require_sendable(*tensor);
  }
  refuse_in_scheduled_step("Coordinator::schedule");
  setup_.gate->require_not_inside("Coordinator::schedule");
  copy_->before_schedule();
}

void ChiefProcess::before_evaluate(std::optional<uint32_t> kind) {
  if (kind && *kind < setup_.steps.size() && setup_.steps[*kind].evaluate) return;
  throw UsageError(
      "LS-EVALUATE",
      kind ? "Coordinator::evaluate was given a step whose function does not say that it takes a Batch, or "
             "that was made after coordinate() had begun, and the workers are other processes"
           : "Coordinator::evaluate was given a function that workers do not know: they are other processes",
      "make a step of the function on all tasks, before coordinate(), and give that: strategy.step(name, "
      "[&](WorkerContext& ctx, const Batch& part) { ... })");
}

// What tasks send.

void ChiefProcess::run() {
  const CallerScope as_task(Caller::kTask);
  while (!is_over_) {
    const auto event = network_.next(Clock::now() + std::chrono::milliseconds(500));
    try {
      if (event) take(*event);
      tell_settled(!event);
    } catch (...) {
      fail(std::current_exception());
    }
  }
}

void ChiefProcess::take(const TaskEvent& event) {
  if (event.kind == TaskEvent::Kind::kLost) return lose(event);
  if (event.kind != TaskEvent::Kind::kReceived) return;
  std::string_view text = event.text;
  try {
    switch (take_word(text)) {
      case TaskWord::kProgram: {
        // Who comes for the next run finds its chief there later.
        if (has_ended_ || event.peer.from.job != Job::kWorker) return network_.close(event.link);
        if (!is_same_program(event, text)) return;
        {
          const std::lock_guard<std::mutex> lock(peers_mutex_);
          peers_[event.peer.from] = {.link = event.link, .hello = event.peer};
        }
        log(LogLevel::kInfo, fmt::format("{} joins the run", event.peer.name()));
        welcome_worker(event.peer.from.task);
        network_.send(event.link, settled_message(told_settled_));
        return;
      }
      case TaskWord::kProtocol: return take_message(event, text);
      case TaskWord::kEvaluation: return take_part(event, text);
      case TaskWord::kFailed: {
        MessageReader from(text, -1, "an error of a server");
        return fail(get_error(from));
      }
      default: return;
    }
  } catch (const PeerError& error) {
    log(LogLevel::kWarning,
        fmt::format("the chief closes its connection with {}: {}", event.peer.name(), error.what()));
    network_.close(event.link);
  }
}

void ChiefProcess::take_message(const TaskEvent& event, std::string_view text) {
  const bool is_worker = event.peer.from.job == Job::kWorker;
  const ChiefMessage message = chief_message(text, is_worker ? event.peer.from.task : -1, payloads_);
  require_payloads(message);
  const auto is_from_sender = [&](const auto& one) {
    using T = std::decay_t<decltype(one)>;
    if constexpr (std::is_same_v<T, StepReport>) {
      return is_worker && one.from.worker == event.peer.from.task;
    } else {
      return !is_worker && one.server == event.peer.from.task;
    }
  };
  if (!std::visit(is_from_sender, message)) {
    throw PeerError("LS-PEER-MESSAGE", fmt::format("{} sent a message in another task's name", event.peer.name()),
                    "start all tasks with the same version of Lockstep");
  }
  chief_->receive(message);
}

void ChiefProcess::take_part(const TaskEvent& event, std::string_view text) {
  const ChiefMessage message = chief_message(text, event.peer.from.task, evaluation_payloads_);
  require_evaluation(message);
  if (event.peer.from.job != Job::kWorker || std::get<StepReport>(message).from.worker != event.peer.from.task) {
    throw PeerError("LS-PEER-MESSAGE", fmt::format("{} sent a message in another task's name", event.peer.name()),
                    "start all tasks with the same version of Lockstep");
  }
  evaluation_chief_->receive(message);
}

void ChiefProcess::lose(const TaskEvent& event) {
  Peer lost;
  {
    const std::lock_guard<std::mutex> lock(peers_mutex_);
    const auto found = peers_.find(event.peer.from);
    if (found == peers_.end() || found->second.link != event.link) return;
    lost = found->second;
    peers_.erase(found);
  }
  gone_.notify_all();
  if (event.peer.from.job == Job::kServer)
    return fail(std::make_exception_ptr(lost_task(event.peer, event.text, "the run cannot go on without its values")));
  if (!has_ended_) {
    log(LogLevel::kWarning,
        fmt::format("{} is lost: {}; its steps go to other workers", event.peer.name(), event.text));
  }
  const WorkerId worker{.worker = static_cast<int32_t>(event.peer.from.task), .incarnation = lost.incarnation};
  chief_->worker_lost(worker);
  evaluation_chief_->worker_lost(worker);
}

void ChiefProcess::fail(std::exception_ptr error) {
  {
    const std::lock_guard<std::mutex> lock(peers_mutex_);
    if (failure_text_.empty()) failure_text_ = message_of(error);
  }
  evaluation_chief_->fail(error);
  chief_->fail(std::move(error));
}

void ChiefProcess::tell_settled(bool at_once) {
  constexpr int64_t kOften = 32;  // steps
  const int64_t settled = chief_->settled();
  bool has_worker = false;
  {
    const std::lock_guard<std::mutex> lock(peers_mutex_);
    const bool is_time = settled > told_settled_ && (at_once || settled - told_settled_ >= kOften);
    for (const auto& [id, one] : peers_) {
      if (id.job != Job::kWorker) continue;
      has_worker = true;
      if (is_time) network_.send(one.link, settled_message(settled));
    }
    if (is_time) told_settled_ = settled;
  }
  if (has_worker) last_worker_ = Clock::now();
  if (has_worker || Clock::now() - last_worker_ < setup_.join.timeouts.join) return;
  fail(std::make_exception_ptr(
      PeerError("LS-PEER-LOST",
                fmt::format("all workers were lost, and none has joined again in {} s",
                            std::chrono::duration_cast<std::chrono::seconds>(setup_.join.timeouts.join).count()),
                "look at the workers' own messages")));
}

void ChiefProcess::to_worker(const ToWorker& one, TaskWord word, PayloadCodec& codec) {
  const std::lock_guard<std::mutex> lock(peers_mutex_);
  const auto found = peers_.find({.job = Job::kWorker, .task = one.worker.worker});
  if (found == peers_.end() || found->second.incarnation != one.worker.incarnation) return;
  network_.send(found->second.link, to_bytes(one.message, codec, message_of_task(word)));
}

void ChiefProcess::to_server(const ToServer& one) {
  const std::lock_guard<std::mutex> lock(peers_mutex_);
  const auto found = peers_.find({.job = Job::kServer, .task = one.server});
  if (found == peers_.end()) return;
  network_.send(found->second.link, to_bytes(one.message, payloads_, message_of_task(TaskWord::kProtocol)));
}

}  // namespace lockstep::internal::server
