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
                   const RunBegin& begin, const RunOptions& more)
    : gate_(std::move(gate)),
      parts_(options.staleness == 0 ? options.workers : 1),
      by_number_(begin.by_number),
      batches_((begin.chief.floor + parts_ - 1) / parts_, begin.data,
               by_number_),  // rounds begin anew at a multiple of the workers
      places_(begin.streams),
      chief_(std::make_shared<ChiefTask>(
          options, begin.chief, gate_,
          TaskMail{
              [this](const ToWorker& one) { workers_[static_cast<std::size_t>(one.worker.worker)]->put(one.message); },
              [this](const ToServer& one) { mail_.put(one.message); },
              [this](int64_t step) { places_.decided(step); }})),
      evaluation_chief_(std::make_shared<ChiefTask>(
          ChiefOptions{.workers = options.workers, .servers = 0}, ChiefCut{.floor = kFirstEvaluated}, gate_,
          TaskMail{[this](const ToWorker& one) {
                     workers_[static_cast<std::size_t>(one.worker.worker)]->put_of_evaluation(one.message);
                   },
                   [](const ToServer& /*none*/) {}})),
      store_(
          strategy, gate_, begin.applied, options.staleness == 0,
          [this](const std::exception_ptr& error) {
            chief_->fail(error);
            evaluation_chief_->fail(error);
          },
          [this](int64_t cut) { freeze(cut); }),
      read_(begin.chief.position),
      machine_(1, 0, begin.chief.position, begin.chief.floor, decided_above(begin.chief)),
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
              .to_evaluation = [this](const ChiefMessage& one) { evaluation_chief_->receive(one); },
              .batches = batches_,
              .places = places_,
              .gate = gate_.get(),
              .workers = options.workers,
              .in_rounds = options.staleness == 0,
              .digests = more.record || more.replay,
              .rounds_gradients = more.rounds_gradients} {
  warm_up_math();
  if (more.record) chief_->record(std::make_unique<RunRecorder>(more.record, begin.chief.position));
  if (more.replay) chief_->replay(more.replay->run, more.replay->functions, options.workers, more.replay->until);
  try {
    server_ = std::thread([this] { serve(); });
    for (int32_t w = 0; w < options.workers; ++w) workers_.push_back(std::make_unique<WorkerTask>(shared_, w));
    if (more.step_limit.count() > 0 && !more.replay) clock_ = std::make_unique<StepClock>(more.step_limit, watched());
  } catch (const std::system_error& error) {
    if (server_.joinable()) stop();
    throw ClusterError("LS-THREADS",
                       fmt::format("a thread for one of {} workers, or for the server, could not be started: {}",
                                   options.workers, error.code().message()),
                       "raise the limit of threads, or ask for fewer .workers");
  }
  for (int32_t w = 0; w < options.workers; ++w) {
    chief_->worker_joined(w);
    evaluation_chief_->worker_joined(w);
  }
  gate_->set_waits({.drain =
                        [this] {
                          chief_->wait_while_held_back();
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
  evaluation_chief_->end();
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

RunBegin LocalRun::next_begin() {
  return {.chief = chief_->next_begin(),
          .applied = store_.applied(),
          .streams = places_.for_next_run(),
          .data = batches_.used(),
          .by_number = by_number_};
}

void LocalRun::freeze(int64_t cut) {
  std::unique_lock<std::mutex> lock(cut_mutex_);
  frozen_ = cut;
  cut_changed_.notify_all();
  cut_changed_.wait(lock, [&] { return over_ >= cut; });
  frozen_ = 0;
  unreported_ = cut;
}

void LocalRun::at_cut(FunctionRef<void(const RunBegin&)> fn) {
  if (shared_.digests) {  // a cut is no part of the record, so it stands where a replay has nothing under way either
    chief_->drain();
    catch_up();
  }
  const int64_t number = [&] {
    const std::lock_guard<std::mutex> lock(cut_mutex_);
    return ++cuts_;
  }();
  batches_.keep_from(chief_->settled() / parts_);  // at the cut it is as high at least
  struct Over {
    LocalRun& run;
    int64_t cut;
    bool has_begun = false;
    ~Over() {
      {
        const std::lock_guard<std::mutex> lock(run.cut_mutex_);
        run.over_ = cut;
      }
      run.cut_changed_.notify_all();
      if (has_begun) run.chief_->end_cut(cut);
      run.batches_.release();
      run.settle_batches();
    }
  } over{*this, number};
  RunBegin cut;
  chief_->begin_cut(number, [&](const ChiefCut& chief) { cut = {.chief = chief, .streams = places_.settled()}; });
  over.has_begun = true;
  {
    std::unique_lock<std::mutex> lock(cut_mutex_);
    cut_changed_.wait(lock, [&] { return frozen_ == number; });
  }
  cut.applied = store_.applied();
  cut.data = batches_.places(cut.chief.floor / parts_);
  cut.by_number = by_number_;
  fn(cut);
}

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
      if (unreported_) machine_.saved(*std::exchange(unreported_, std::nullopt), {}, out);
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
