#include "lockstep/server/local/evaluation.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/server/remote/batch_bytes.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

/// While it lives, no step begins, and no other thread of the program changes values.
class StepsHeldBack {
 public:
  explicit StepsHeldBack(CoordinatedRun& run) : run_(run) {
    run_.chief().hold_back();
    try {
      run_.chief().join();
      run_.gate()->hold_writes();
      run_.finish();  // what was changed until now is on the servers
    } catch (...) {
      run_.gate()->let_write();
      run_.chief().go_on();
      throw;
    }
  }
  ~StepsHeldBack() {
    run_.gate()->let_write();
    run_.chief().go_on();
  }
  StepsHeldBack(const StepsHeldBack&) = delete;
  StepsHeldBack& operator=(const StepsHeldBack&) = delete;

 private:
  CoordinatedRun& run_;
};

/// Calls of the program's function, which may refer to what is gone after the evaluation.
class Calls {
 public:
  explicit Calls(EvaluateFunction call) : call_(std::move(call)) {}

  PartResult operator()(WorkerContext& context, const Batch& batch) {
    const Entered entered(*this);
    return call_(context, batch);
  }
  /// No further call begins; waits for those under way.
  void end() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_over_ = true;
    ended_.wait(lock, [&] { return under_way_ == 0; });
  }

 private:
  struct Entered {
    explicit Entered(Calls& calls) : calls_(calls) {
      const std::lock_guard<std::mutex> lock(calls_.mutex_);
      if (calls_.is_over_) {
        throw CancelledError("LS-CANCELLED", "a part of an evaluation began after another part had failed",
                             "look at the error of the evaluation");
      }
      ++calls_.under_way_;
    }
    ~Entered() {
      const std::lock_guard<std::mutex> lock(calls_.mutex_);
      --calls_.under_way_;
      calls_.ended_.notify_all();
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    Calls& calls_;
  };

  const EvaluateFunction call_;
  std::mutex mutex_;
  std::condition_variable ended_;
  int64_t under_way_ = 0;  // guarded by mutex_
  bool is_over_ = false;   // the same
};

/// The strategy's number of evaluations since its last step, of which their random streams are functions.
StateItem evaluations_of(const Strategy& strategy) {
  for (StateItem& item : strategy.state_items()) {
    if (item.kind == StateItem::Kind::kNumber && item.name == "evaluations") return std::move(item);
  }
  throw InternalError("LS-INTERNAL", "a strategy has no number of evaluations", "please report it");
}

struct ChangeOfPart {
  int64_t part = 0;
  StepPush::Change change;
};

void change_tensor(at::Tensor& value, const StepPush::Change& one) {
  switch (one.change) {
    case WorkerValues::Change::kAssign: value = one.value; break;
    case WorkerValues::Change::kAdd: value = value + one.value; break;
    case WorkerValues::Change::kSubtract: value = value - one.value; break;
  }
}

/// On-read variables are changed in the component of each part, with the bits of replicas; others as a whole.
void apply_changes(const std::shared_ptr<StrategyGate>& gate, const std::vector<ChangeOfPart>& changes) {
  if (changes.empty()) return;
  const GateHold hold(gate, "Variable::assign");  // no step counts between a read and the write
  std::vector<Variable> changed;
  for (const ChangeOfPart& one : changes) {
    const auto is_same = [&](const Variable& v) { return &v.state() == &one.change.variable.state(); };
    if (std::ranges::none_of(changed, is_same)) changed.push_back(one.change.variable);
  }
  for (const Variable& variable : changed) {
    const auto is_of_this = [&](const ChangeOfPart& one) { return &one.change.variable.state() == &variable.state(); };
    if (variable.state().on_write()) {
      at::Tensor value = variable.read();
      for (const ChangeOfPart& one : changes) {
        if (is_of_this(one)) change_tensor(value, one.change);
      }
      variable.assign(value);
      continue;
    }
    const PerReplica<at::Tensor> components = variable.components();
    std::vector<at::Tensor> values(components.begin(), components.end());
    for (const ChangeOfPart& one : changes) {
      if (is_of_this(one)) change_tensor(values[static_cast<std::size_t>(one.part)], one.change);
    }
    variable.assign(PerReplica<at::Tensor>(std::move(values)));
  }
}

}  // namespace

void evaluate_on_workers(CoordinatedRun& run, std::optional<uint32_t> kind,
                         FunctionRef<const PerReplica<Batch>*()> next, const EvaluateFunction& call,
                         FunctionRef<void(const PerReplica<Batch>&, const std::vector<PartResult>&)> take) {
  run.before_evaluate(kind);
  refuse_in_scheduled_step("Coordinator::evaluate");
  run.gate()->require_not_inside("Coordinator::evaluate");
  struct Given {
    PerReplica<Batch> batch;
    std::vector<std::shared_ptr<ScheduledStep>> parts;
  };
  ChiefTask& chief = run.evaluation_chief();
  Strategy& strategy = run.strategy();
  std::vector<ChangeOfPart> changes;
  {
    const StepsHeldBack held(run);
    const StateItem counter = evaluations_of(strategy);
    const std::vector<at::Tensor> before = counter.read();
    const int64_t evaluations = before.front().item<int64_t>();
    const int64_t steps = run.chief().steps();
    const auto calls = std::make_shared<Calls>(call);
    EvaluateFunction call_one;
    if (!run.has_processes())
      call_one = [calls](WorkerContext& context, const Batch& batch) { return (*calls)(context, batch); };
    int64_t batches = 0;
    std::deque<Given> given;
    const auto take_first = [&] {
      const Given first = std::move(given.front());
      given.pop_front();
      std::vector<PartResult> results;
      for (std::size_t r = 0; r < first.parts.size(); ++r) {
        const Payload done = chief.result_of(*first.parts[r]);
        const auto& part = as<EvaluatedPart>(done);
        results.push_back(part.result);
        for (const StepPush::Change& one : part.changes) changes.push_back({static_cast<int64_t>(r), one});
      }
      take(first.batch, results);
    };
    const auto most = static_cast<std::size_t>(run.in_rounds() ? 2 : 2 * run.workers());
    try {
      while (const PerReplica<Batch>* const batch = next()) {
        Given one{*batch, {}};
        int64_t r = 0;
        for (const Batch& part : *batch) {
          if (run.has_processes()) require_sendable(part);
          StepRequest request;
          request.kind = kind.value_or(0);
          request.arguments = std::make_shared<EvaluationPart>(EvaluationPart{
              .call = call_one,
              .batch = part,
              .part = r,
              .step = steps,
              .stream = {strategy.seed(), StreamPurpose::kEvaluate, r, strategy.step(), evaluations + batches}});
          one.parts.push_back(chief.schedule(std::move(request), {}));
          ++r;
        }
        ++batches;
        given.push_back(std::move(one));
        if (given.size() >= most) take_first();
      }
      while (!given.empty()) take_first();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      chief.cancel();
      calls->end();
      try {
        chief.done();                    // its first error was this one, or is of no interest beside it
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      }
      try {
        std::rethrow_exception(error);
      } catch (const ReplicaError& of_part) {
        try {
          std::rethrow_exception(of_part.failures().front().exception);
        } catch (...) {
          throw ReplicaError(steps, of_part.failures(), /*evaluation=*/true);
        }
      }
    }
    calls->end();
    const GateHold hold(run.gate(), "Variable::assign");  // servers set it back at their next step
    counter.write({at::full({}, evaluations + batches, before.front().options())});
  }
  apply_changes(run.gate(), changes);
}

}  // namespace lockstep::internal::server
