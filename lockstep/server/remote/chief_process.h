// The chief of a run whose tasks are processes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/remote/chief_copy.h"
#include "lockstep/server/remote/evaluation_codec.h"
#include "lockstep/server/remote/task_process.h"

namespace lockstep::internal::inline server {

/// Its copy of the strategy is a cache of what the servers have: the gate's waits fetch what has changed there before
/// the program reads or changes a value (ChiefCopy). A thread of it takes what the tasks send.
class ChiefProcess final : public CoordinatedRun {
 public:
  /// Waits until all tasks have come. A ClusterError (LS-CLUSTER-JOIN) names those that are missing.
  ChiefProcess(const RemoteSetup& setup, const TaskPlace& place, const ChiefCut& begin);
  /// Ends the run on all tasks, unless end() has done it: with the code of tasks that end because of another one.
  ~ChiefProcess() override;

  ChiefTask& chief() override { return *chief_; }
  ChiefTask& evaluation_chief() override { return *evaluation_chief_; }
  Strategy& strategy() override { return setup_.strategy; }
  const std::shared_ptr<StrategyGate>& gate() const override { return setup_.gate; }
  int64_t workers() const override { return setup_.chief.workers; }
  bool in_rounds() const override { return setup_.in_rounds(); }
  bool has_processes() const override { return true; }
  void before_evaluate(std::optional<uint32_t> kind) override;
  void catch_up() override { chief_->wait_for_servers(); }
  void settle_batches() override {}
  void before_schedule(const StepCall& call) override;
  void finish() override { copy_->refresh(); }
  /// Streams of the workers' own begin anew in the next run.
  RunBegin next_begin() override;
  void at_cut(FunctionRef<void(const RunBegin&)> fn) override { copy_->at_cut(fn); }
  /// Tells all tasks that the run has ended, and waits a moment until they have heard it.
  void end(int32_t code, const std::string& failure = {});

 private:
  using Clock = TaskNetwork::Clock;
  struct Peer {
    uint64_t link = 0;
    uint32_t incarnation = 0;  // of a worker; 0: it is not welcome yet
    TaskHello hello = {};
  };

  void gather();
  std::string missing() const;
  /// Whether the task runs the same program; it is told where it does not.
  bool is_same_program(const TaskEvent& event, std::string_view program);
  void welcome_worker(int64_t worker);
  void run();
  void take(const TaskEvent& event);
  void take_message(const TaskEvent& event, std::string_view text);
  void take_part(const TaskEvent& event, std::string_view text);
  void lose(const TaskEvent& event);
  void fail(std::exception_ptr error);
  void tell_settled(bool at_once);
  void to_worker(const ToWorker& one, TaskWord word, PayloadCodec& codec);
  void to_server(const ToServer& one);

  const RemoteSetup& setup_;
  const TaskPlace place_;
  const ChiefCut begin_;
  const uint64_t epoch_;
  const std::string program_;
  RemotePayloads payloads_;
  EvaluationPayloads evaluation_payloads_;
  TaskNetwork network_;

  mutable std::mutex peers_mutex_;
  std::condition_variable gone_;
  std::map<TaskId, Peer> peers_;  // guarded by peers_mutex_
  std::string refusal_;           // of the last task that was refused; used by one thread
  std::string failure_text_;      // guarded by peers_mutex_

  std::shared_ptr<ChiefTask> chief_;
  std::shared_ptr<ChiefTask> evaluation_chief_;

  std::optional<ChiefCopy> copy_;  // made once, before the thread

  std::atomic<bool> is_over_ = false;
  std::atomic<bool> has_ended_ = false;
  int64_t told_settled_ = 0;            // used by the thread
  Clock::time_point last_worker_ = {};  // when there was one last; used by the thread
  std::thread thread_;
};

}  // namespace lockstep::internal::server
