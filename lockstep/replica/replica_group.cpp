#include "lockstep/replica/replica_group.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/memory/tensor_allocator.h"

namespace lockstep::internal {

namespace {

thread_local const ReplicaContext* current = nullptr;
thread_local const ReplicaGroup* merging = nullptr;  // whose merge function this thread runs
thread_local const ReplicaGroup* alone = nullptr;    // whose chief does something alone, on this thread

/// Something that differs between threads that live at the same time.
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

ReplicaGroup::ReplicaGroup(LanePlan plan, uint64_t seed, Strategy* strategy, std::shared_ptr<const Reducer> reducer)
    : plan_(plan),
      seed_(seed),
      reducer_(reducer ? std::move(reducer) : std::make_shared<const TreeReducer>()),
      in_tree_order_(dynamic_cast<const TreeReducer*>(reducer_.get()) != nullptr),
      strategy_(strategy),
      streams_(static_cast<std::size_t>(plan.num_replicas)) {
  install_tensor_allocator();
  intercept_random_operators();
  for (int64_t r = 0; r < plan.num_replicas; ++r) {
    contexts_.push_back(std::unique_ptr<ReplicaContext>(new ReplicaContext(*this, r)));
  }
  pool_ = std::make_unique<ReplicaPool>(std::move(plan));
}

ReplicaGroup::~ReplicaGroup() = default;

void ReplicaGroup::stop() { pool_.reset(); }

void ReplicaGroup::run(Mode mode, FunctionRef<void(ReplicaContext&)> body) {
  if (!pool_) throw InternalError("a run after the strategy ended", "please report it");
  mode_ = mode;
  running_ = true;
  merge_stream_.restart({seed_, StreamPurpose::kMerge, 0, step_, evaluations_});
  const auto errors = pool_->run([&](int64_t r) {
    ReplicaContext& context = *contexts_[r];
    restart_streams(r);
    if (kAutocastCachePerThread) forget_autocast_weights();  // an assignment since the last run could not
    const ContextScope scope(context, streams_[r].own);
    body(context);
  });
  mode_ = Mode::kStep;
  running_ = false;
  for (const auto& error : errors) {
    if (error) throw_replica_error(errors);
  }
  if (mode == Mode::kStep) {
    ++step_;
    evaluations_ = 0;
  } else {
    ++evaluations_;
  }
}

void ReplicaGroup::restart_streams(int64_t r) {
  const bool evaluates = mode_ == Mode::kEvaluate;
  const StreamPurpose own = evaluates ? StreamPurpose::kEvaluate : StreamPurpose::kReplica;
  const StreamPurpose shared = evaluates ? StreamPurpose::kEvaluateShared : StreamPurpose::kShared;
  const int64_t draw = evaluates ? evaluations_ : 0;
  streams_[r].own.restart({seed_, own, first_replica() + r, step_, draw});
  streams_[r].shared.restart({seed_, shared, 0, step_, draw});
}

void ReplicaGroup::throw_replica_error(std::span<const std::exception_ptr> errors) const {
  std::vector<ReplicaError::Failure> failures;
  for (std::size_t r = 0; r < errors.size(); ++r) {
    if (!errors[r]) continue;
    ReplicaError::Failure failure{first_replica() + static_cast<int64_t>(r), message_of(errors[r]), errors[r]};
    const ReplicaContext::Share& share = contexts_[r]->share_;
    if (share.batches == 1 && share.part <= 1 && share.whole > share.part) {
      failure.message += fmt::format(
          " (this replica's part of the batch has {} of {} samples: where a module refuses so small a part, as batch "
          "normalisation does, choose a larger global batch, drop the remainder, or use fewer replicas)",
          share.part, share.whole);
    }
    failures.push_back(std::move(failure));
  }
  try {
    std::rethrow_exception(failures.front().exception);
  } catch (...) {
    throw ReplicaError(step_, std::move(failures));
  }
}

CallScope::CallScope(ReplicaGroup& group, const char* call, const char* inside, Workers workers)
    : group_(group), call_(call) {
  if (current) {
    throw UsageError(fmt::format("{} was called inside a step, by replica {} at step {}", call,
                                 current->replica_id().value(), current->step()),
                     fmt::format("inside a step {}", inside));
  }
  if (alone == &group && workers == Workers::kAll) {
    throw UsageError(fmt::format("{} was called inside on_chief, which one worker runs alone", call),
                     "call it before on_chief, on all workers, and use what it gave");
  }
  if (merging == &group) return;
  const void* nobody = nullptr;
  outermost_ = group.caller_.compare_exchange_strong(nobody, this_thread(), std::memory_order_acquire);
  if (!outermost_ && nobody != this_thread()) {
    throw UsageError(fmt::format("{} was called while another thread's call on the same strategy is under way", call),
                     "call a strategy from one thread at a time, or give each thread a strategy of its own");
  }
}

CallScope::~CallScope() {
  if (outermost_) group_.caller_.store(nullptr, std::memory_order_release);
}

void CallScope::require_outermost() const {
  if (outermost_) return;
  throw UsageError(fmt::format("{} was called inside {}", call_,
                               merging == &group_ ? "merge_call" : "another call on the same strategy"),
                   "let the outer call end first: runs do not nest");
}

ChiefScope::ChiefScope(const ReplicaGroup& group) : outer_(std::exchange(alone, &group)) {}

ChiefScope::~ChiefScope() { alone = outer_; }

MergeScope::MergeScope(const ReplicaContext& context)
    : context_(context),
      outer_(std::exchange(current, nullptr)),
      random_(std::make_unique<RandomScope>(ContextAccess::group(context).merge_stream())) {
  merging = &ContextAccess::group(context);
}

MergeScope::~MergeScope() {
  merging = nullptr;
  current = outer_;
}

Strategy& MergeScope::strategy() const { return *ContextAccess::group(context_).strategy(); }
ReplicaId MergeScope::first_replica() const { return ContextAccess::group(context_).first_replica(); }

}  // namespace lockstep::internal
