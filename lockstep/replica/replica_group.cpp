#include "lockstep/replica/replica_group.h"

#include <ATen/ATen.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/blocks.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/loops/simd.h"
#include "lockstep/core/process/stop_request.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/memory/tensor_allocator.h"
#include "lockstep/reduce/across_workers.h"

namespace lockstep::internal::inline replica {

namespace {

thread_local const ReplicaContext* current = nullptr;
thread_local const ReplicaGroup* merging = nullptr;  // the group whose merge function this thread runs
thread_local const ReplicaGroup* alone = nullptr;    // the group whose chief works alone on this thread

/// What a worker that was asked for a stop adds to what it says at the end of a step.
constexpr const char* kStop = "stop";

/// An address that differs between threads that live at the same time.
const void* this_thread() {
  thread_local char token;
  return &token;
}

/// Marks the calling thread as the replica's for the length of its step.
class ContextScope {
 public:
  ContextScope(const ReplicaContext& context, RandomStream& stream) : random_(stream) { current = &context; }
  ~ContextScope() { current = nullptr; }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  RandomScope random_;
};

}  // namespace

const ReplicaContext* current_context() { return current; }

ReplicaGroup::ReplicaGroup(LanePlan plan, ReplicaBlock block, uint64_t seed, StepHost& host,
                           std::shared_ptr<const Reducer> reducer, std::shared_ptr<Rounds> rounds)
    : plan_(plan),
      block_(block),
      rounds_(std::move(rounds)),
      reducer_(reducer ? std::move(reducer) : std::make_shared<const TreeReducer>()),
      in_tree_order_(reducer_->in_tree_order()),
      host_(host),
      streams_(static_cast<std::size_t>(block.local)),
      state_{.seed = seed} {
  check_log_setting();
  simd();  // refuses a wrong LOCKSTEP_SIMD before anything is computed
  install_tensor_allocator();
  intercept_random_operators();
  for (int64_t r = 0; r < block.local; ++r) {
    contexts_.push_back(std::unique_ptr<ReplicaContext>(new ReplicaContext(*this, r)));
  }
  pool_ = std::make_unique<ReplicaPool>(std::move(plan), first_replica(), num_workers() > 1 ? rounds_.get() : nullptr);
}

ReplicaGroup::~ReplicaGroup() = default;

at::Tensor ReplicaGroup::reduce(Reduction reduction, std::span<const at::Tensor> mine) const {
  if (num_workers() == 1) return reduce_by(*reducer_, reduction, mine);
  return reduce_across(*rounds_, *reducer_, reduction, block_.all, {block_.first, block_.local}, mine);
}

std::vector<at::Tensor> ReplicaGroup::of_all_replicas(std::span<const at::Tensor> mine) const {
  std::vector<at::Tensor> all;
  if (num_workers() == 1) {
    all.assign(mine.begin(), mine.end());
    return all;
  }
  for (const auto& of_worker : gather_across(*rounds_, mine)) all.insert(all.end(), of_worker.begin(), of_worker.end());
  return all;
}

at::Tensor ReplicaGroup::of_replica(ReplicaId from, const at::Tensor& value) const {
  if (num_workers() == 1) return value;
  return broadcast_across(*rounds_, part_that_has(block_.all, num_workers(), from), value);
}

bool ReplicaGroup::stop() {
  if (!pool_ || !pool_->running()) {
    pool_.reset();
    return true;
  }
  // A step has called std::exit: this is the destructor of a static strategy, perhaps on a replica's thread. Replicas
  // may be at work in their steps, and waiting for them might never end.
  pool_->abandon();
  static auto* const kept = new std::vector<std::shared_ptr<ReplicaGroup>>;  // never destroyed, on purpose
  kept->push_back(shared_from_this());
  return false;
}

namespace {

/// A program that seeds in a step does so in each.
bool is_looked_at(int64_t run) { return run < 8 || run % 256 == 0; }

}  // namespace

void ReplicaGroup::run(RunMode mode, FunctionRef<void(ReplicaContext&)> body, FunctionRef<void()> finish) {
  if (!pool_) throw InternalError("LS-INTERNAL", "a run after the strategy ended", "please report it");
  /// However the run ends, later calls find that no run is under way.
  struct Scope {
    RunState& state;
    Rounds& rounds;
    const int64_t step;
    ~Scope() {
      state.running = false;
      state.mode = RunMode::kStep;
      rounds.set_phase({.kind = WorkerPhase::Kind::kBetween, .step = step});
    }
  };
  const Scope scope{state_, *rounds_, state_.step};
  const bool evaluates = mode == RunMode::kEvaluate;
  rounds_->set_phase(
      {.kind = evaluates ? WorkerPhase::Kind::kEvaluation : WorkerPhase::Kind::kStep, .step = state_.step});
  state_.mode = mode;
  state_.running = true;
  merge_stream_.restart(state_.merge_stream());
  std::optional<DefaultGeneratorWatch> default_generator;
  if (is_looked_at(runs_++)) default_generator.emplace();
  const TraceScope trace(evaluates ? "evaluation" : "step", TraceKind::kStep, lane_track(0), state_.step);
  const auto errors = pool_->run(
      [&](int64_t r) {
        ReplicaContext& context = *contexts_[r];
        begin_run(r);
        if (kAutocastCachePerThread) forget_autocast_weights();  // an assignment between runs could not
        const ContextScope in_step(context, streams_[r].own);
        body(context);
      },
      state_.step);
  state_.running = false;
  report_losses();
  if (default_generator && default_generator->was_seeded()) report_seed();
  default_generator.reset();
  if (std::any_of(errors.begin(), errors.end(), [](const auto& error) { return error != nullptr; })) {
    throw_replica_error(errors);
  }
  try {
    bool is_stop_requested = internal::is_stop_requested();
    if (num_workers() == 1) {
      finish();
    } else {
      const auto all = agree_on_call(*rounds_, {.call = "the end of a step", .step = state_.step}, [&](Proposal& mine) {
        finish();
        if (is_stop_requested) mine.data = kStop;
      });
      is_stop_requested = std::any_of(all.begin(), all.end(), [](const Proposal& one) { return one.data == kStop; });
    }
    stop_requested_ = is_stop_requested;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    throw ReplicaError(state_.step, {{first_replica(), message_of(error), error}}, state_.evaluates());
  }
  state_.count();
  rounds_->set_next_step(state_.step);
}

void ReplicaGroup::begin_run(int64_t r) {
  streams_[r].own.restart(state_.stream_of(block_.id_of(r)));
  streams_[r].shared.restart(state_.shared_stream());
  ReplicaContext& context = *contexts_[r];
  context.losses_->begin_run(state_.step);
  context.had_loss_not_finite_ = false;
}

void ReplicaGroup::report_seed() {
  findings_.add("LS-SEED-IN-STEP", "torch::manual_seed", state_.step, [&] {
    return fmt::format(
        "step {}: LibTorch's default generator was seeded while the step ran (torch::manual_seed), which does nothing "
        "for the step: operators draw from each replica's own stream, ctx.random(); for the same numbers each time "
        "give the operator a generator of its own: torch::rand({{n}}, at::make_generator<at::CPUGeneratorImpl>(seed))",
        state_.step);
  });
}

void ReplicaGroup::report_losses() {
  std::vector<int64_t> replicas;
  for (const auto& context : contexts_) {
    if (context->had_loss_not_finite_) replicas.push_back(block_.id_of(context->local_index_).value());
  }
  if (replicas.empty()) return;
  findings_.add("LS-NOT-FINITE", "scale_loss", state_.step, [&] {
    const std::string worker =
        num_workers() == 1 ? std::string() : fmt::format(" (worker {})", rounds_->worker_index());
    return fmt::format(
        "step {}: a loss that went through scale_loss is infinite or NaN on replica {}{}; look at the samples of this "
        "step, lower the learning rate, or let the optimizer refuse or leave out such steps: "
        "StepOptions{{.check_finite = true}}, {{.skip_non_finite = true}}",
        state_.step, fmt::join(replicas, ", "), worker);
  });
}

namespace {

/// What a replica with 0 or 1 of `whole` samples may do about its error `message`; nothing for a larger part.
std::string about_small_part(std::string_view message, int64_t part, int64_t whole) {
  if (part > 1 || whole <= part) return {};
  const std::string share =
      fmt::format("this replica's part of the batch has {} of {}", part, counted(whole, "sample"));
  // LibTorch's words for backward() of a loss that no parameter went into, as that of a loop over no samples.
  if (part == 0 && message.find("does not require grad") != std::string_view::npos) {
    return fmt::format(
        " ({}, so its loss has no graph: skip backward() where b.size() == 0, and call the optimizer's step all the "
        "same, or let the whole empty part go through the module)",
        share);
  }
  return fmt::format(
      " ({}: where a module refuses so small a part, as batch normalisation does, choose a larger global batch, drop "
      "the remainder, or use fewer replicas)",
      share);
}

/// Whether the library says itself what is wrong.
bool is_of_library(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// The replica of another worker whose failure an exception tells of; -1 where there is none.
int64_t replica_elsewhere(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& one) {
    return one.failed().replica;
  } catch (...) {
    return -1;
  }
}

}  // namespace

void ReplicaGroup::throw_replica_error(std::span<const std::exception_ptr> errors) const {
  std::vector<ReplicaError::Failure> failures;
  // Where no replica here has failed itself, the one that has is named.
  const auto is_own = [](const std::exception_ptr& error) { return error && replica_elsewhere(error) < 0; };
  if (std::none_of(errors.begin(), errors.end(), is_own)) {
    const auto first = std::find_if(errors.begin(), errors.end(), [](const auto& error) { return error != nullptr; });
    failures.push_back({ReplicaId(replica_elsewhere(*first)), message_of(*first), *first});
    try {
      std::rethrow_exception(*first);
    } catch (...) {
      throw ReplicaError(state_.step, std::move(failures), state_.evaluates());
    }
  }
  for (std::size_t r = 0; r < errors.size(); ++r) {
    if (!errors[r]) continue;
    ReplicaError::Failure failure{block_.id_of(static_cast<int64_t>(r)), message_of(errors[r]), errors[r]};
    const ReplicaContext::Share& share = contexts_[r]->share_;
    if (share.batches == 1 && !is_of_library(errors[r]))
      failure.message += about_small_part(failure.message, share.part, share.whole);
    failures.push_back(std::move(failure));
  }
  try {
    std::rethrow_exception(failures.front().exception);
  } catch (...) {
    throw ReplicaError(state_.step, std::move(failures), state_.evaluates());
  }
}

void CallScope::refuse_in_step(const char* call, const char* inside) {
  if (!current) return;
  throw UsageError("LS-INSIDE-STEP",
                   fmt::format("{} was called inside a step, by replica {} at step {}", call,
                               current->replica_id().value(), current->step()),
                   fmt::format("inside a step {}", inside));
}

CallScope::CallScope(ReplicaGroup& group, const char* call, const char* inside, Workers workers, std::string_view name)
    : group_(group), call_(call), gate_((refuse_in_step(call, inside), group.gate_), call) {
  if (alone == &group && workers == Workers::kAll) {
    throw UsageError("LS-INSIDE-CHIEF", fmt::format("{} was called inside on_chief, which one worker runs alone", call),
                     "call it before on_chief, on all workers, and use what it gave");
  }
  const auto agree = [&] {
    if (workers == Workers::kThis) return;
    agreed_ = true;
    if (group.num_workers() == 1) return;
    Proposal mine{.call = call, .name = std::string(name), .step = group.step()};
    if (!name.empty()) mine.detail = fmt::format("{} of '{}'", call, name);
    agree_on_call(group.rounds(), std::move(mine), [](Proposal&) {});
  };
  if (merging == &group) {
    agree();
    return;
  }
  const void* nobody = nullptr;
  outermost_ = group.caller_.compare_exchange_strong(nobody, this_thread(), std::memory_order_acquire);
  if (!outermost_ && nobody != this_thread()) {
    throw UsageError("LS-CONCURRENT-CALL",
                     fmt::format("{} was called while another thread's call on the same strategy is under way", call),
                     "call a strategy from one thread at a time, or give each thread a strategy of its own");
  }
  if (!outermost_) return;
  group.rounds().begin();
  try {
    agree();
  } catch (...) {
    group.caller_.store(nullptr, std::memory_order_release);
    throw;
  }
}

CallScope::~CallScope() {
  if (outermost_) group_.caller_.store(nullptr, std::memory_order_release);
}

void CallScope::require_outermost() const {
  if (outermost_) return;
  throw UsageError("LS-NESTED-CALL",
                   fmt::format("{} was called inside {}", call_,
                               merging == &group_ ? "merge_call" : "another call on the same strategy"),
                   "let the outer call end first: runs do not nest");
}

ChiefScope::ChiefScope(const ReplicaGroup& group) : outer_(std::exchange(alone, &group)) {}

ChiefScope::~ChiefScope() { alone = outer_; }

MergeScope::MergeScope(const ReplicaContext& context)
    : context_(context),
      outer_(std::exchange(current, nullptr)),
      outer_merging_(std::exchange(merging, &ContextAccess::group(context))),
      random_(std::make_unique<RandomScope>(ContextAccess::group(context).merge_stream())) {}

MergeScope::~MergeScope() {
  merging = outer_merging_;
  current = outer_;
}

Strategy& MergeScope::strategy() const { return ContextAccess::group(context_).host().strategy(); }
ReplicaId MergeScope::first_replica() const { return ContextAccess::group(context_).first_replica(); }

void check_merged_size(std::size_t size, std::size_t num_replicas) {
  if (size == num_replicas) return;
  throw UsageError(
      "LS-PER-REPLICA-SIZE",
      fmt::format("a merge function returned a PerReplica of {} for {}", counted(static_cast<int64_t>(size), "value"),
                  counted(static_cast<int64_t>(num_replicas), "replica")),
      "return one value for each replica of this process, or a value that all get");
}

std::string describe_merge(const std::type_info& function) {
  constexpr std::size_t kLongest = 160;
  std::string type = c10::demangle(function.name());
  if (type.size() > kLongest) type.replace(kLongest, std::string::npos, "...");
  return fmt::format("merge_call({})", type);
}

}  // namespace lockstep::internal::replica
