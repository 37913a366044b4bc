// The order of events: the constructor starts the server's thread, then the workers' threads, and tells the chief that
// these have joined. From then on messages go from thread to thread. The destructor takes the workers away first,
// because they wait for the server; then the server.
#include "lockstep/server/local/local_run.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/thread_stack.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/server/step_call.h"

namespace lockstep::internal::inline server {

LocalRun::LocalRun(Strategy& strategy, std::shared_ptr<StrategyGate> gate, const ChiefOptions& options,
                   const ChiefCut& begin, const RunOptions& more)
    : gate_(std::move(gate)),
      parts_(options.staleness == 0 ? options.workers : 1),
      batches_(begin.floor / parts_),
      chief_(std::make_shared<ChiefTask>(
          options, begin, gate_,
          TaskMail{
              [this](const ToWorker& one) { workers_[static_cast<std::size_t>(one.worker.worker)]->put(one.message); },
              [this](const ToServer& one) { mail_.put(one.message); }})),
      store_(strategy, gate_, begin.counted, options.staleness == 0,
             [this](std::exception_ptr error) { chief_->fail(std::move(error)); }),
      read_(begin.position),
      machine_(1, 0, begin.position, begin.floor, decided_above(begin)),
      shared_{.strategy = strategy,
              .function = [](uint32_t /*kind*/) -> StepFunction { return &call_step; },
              .to_server =
                  [this](const ToServer& one) {
                    if (!chief_->takes(one)) mail_.put(one.message);
                  },
              .to_chief =
                  [this](const ChiefMessage& one) {
                    chief_->receive(one);
                    settle_batches();
                  },
              .batches = batches_,
              .gate = gate_.get(),
              .workers = options.workers,
              .in_rounds = options.staleness == 0,
              .digests = more.record || more.replay,
              .rounds_gradients = more.rounds_gradients} {
  warm_up_math();
  if (more.record) chief_->record(std::make_unique<RunRecorder>(more.record, begin.position));
  if (more.replay) chief_->replay(more.replay->run, more.replay->functions, options.workers, more.replay->until);
  try {
    server_ = std::thread([this] { serve(); });
    for (int32_t w = 0; w < options.workers; ++w) workers_.push_back(std::make_unique<WorkerTask>(shared_, w));
  } catch (const std::system_error& error) {
    if (server_.joinable()) stop();
    throw ClusterError("LS-THREADS",
                       fmt::format("a thread for one of {} workers, or for the server, could not be started: {}",
                                   options.workers, error.code().message()),
                       "raise the limit of threads, or ask for fewer .workers");
  }
  for (int32_t w = 0; w < options.workers; ++w) chief_->worker_joined(w);
  if (more.step_limit.count() > 0 && !more.replay) clock_ = std::make_unique<StepClock>(more.step_limit, watched());
  gate_->set_waits({.drain =
                        [this] {
                          chief_->drain();
                          settle_batches();
                        },
                    .catch_up = [this] { catch_up(); },
                    .begin_read = [this] { wait_until_read(chief_->begin_read()); },
                    .end_read = [this] { chief_->end_read(store_.num_applied()); }});
}

StepClock::Watched LocalRun::watched() {
  return {.running =
              [this] {
                std::vector<std::optional<RunningStep>> all;
                for (const auto& worker : workers_) all.push_back(worker->running());
                return all;
              },
          .overdue =
              [this](int32_t worker, StepAttempt step) {
                log(LogLevel::kWarning,
                    fmt::format("step {} has run on worker {} for longer than timeouts.step, and is given to another "
                                "worker; worker {} is in:\n{}",
                                step.step, worker, worker,
                                stack_of_thread(workers_[static_cast<std::size_t>(worker)]->handle())));
                chief_->overdue(step);
              },
          .all_stuck = [this] { chief_->give_up_waiting(); }};
}

LocalRun::~LocalRun() {
  clock_.reset();
  gate_->set_waits({});
  stop();
  chief_->end();
}

void LocalRun::stop() {
  // Their objects stay until all threads have ended: somebody may still send them a message.
  for (const auto& worker : workers_) worker->stop();
  catch_up();  // what counts is applied, however the run ends
  mail_.close();
  server_.join();
}

void LocalRun::catch_up() { wait_until_read(chief_->position_sent()); }

void LocalRun::wait_until_read(Position end) {
  std::unique_lock<std::mutex> lock(read_mutex_);
  has_read_.wait(lock, [&] { return read_ >= end; });
}

void LocalRun::settle_batches() { batches_.forget_below(chief_->settled() / parts_); }

void LocalRun::carry(ServerOutput& out) {
  for (const ToWorker& one : out.to_workers) {
    chief_->answers(one);
    workers_[static_cast<std::size_t>(one.worker.worker)]->put(one.message);
  }
  for (const ChiefMessage& one : out.to_chief) chief_->receive(one);
  out = {};
}

void LocalRun::serve() {
  const CallerScope task(Caller::kTask);
  ServerOutput out;
  for (;;) {
    const std::deque<ServerMessage> messages = mail_.take_all();
    if (messages.empty()) return;
    for (const ServerMessage& one : messages) machine_.receive(one, store_, out);
    carry(out);
    bool has_read = false;
    while (machine_.has_entries()) {
      machine_.read_entry(store_, out);
      carry(out);
      has_read = true;
    }
    if (!has_read) continue;
    {
      const std::lock_guard<std::mutex> lock(read_mutex_);
      read_ = machine_.position();
    }
    has_read_.notify_all();
    machine_.report(out);
    carry(out);
  }
}

}  // namespace lockstep::internal::server
