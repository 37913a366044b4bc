// A captured step, call by call. The first call for some arguments is recorded, and so is the second; where both
// recordings are equal, the next calls are replayed. Where they are not, the third is compared with the second, and so
// on, up to kMostInVain times: an optimizer's first step does more than later ones. From time to time a call runs as it
// is and is compared with the recording, so that a step that has changed meanwhile is noticed.
#include "lockstep/capture/step_capture.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "lockstep/capture/recorder.h"
#include "lockstep/capture/replayer.h"
#include "lockstep/capture/step_form.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/intercept/scopes.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/replica/step_host.h"
#include "lockstep/replica/step_recorder.h"
#include "lockstep/variable/registry.h"

namespace lockstep::internal::inline capture {

/// What is known of a step for arguments of one kind.
struct ReplicaRecording {
  explicit ReplicaRecording(CaptureKey for_these) : key(std::move(for_these)) {}

  const CaptureKey key;
  std::string shapes = {};
  std::string refusal = {};  // why it runs as it is, for good
  int64_t calls = 0;
  int64_t replayed = 0;
  int64_t replayed_then = 0;  // when it was outdated last
  int recorded = 0;
  int in_vain = 0;  // recordings that were other ones than that before
  int postponed = 0;
  int outdated = 0;
  bool is_due = false;  // to be compared, as soon as it can be
  // The last recorded run, which the next one is compared with.
  std::optional<StepForm> last = {};
  CaptureKey last_results = {};
  std::string last_difference = {};
  // Once two were equal.
  std::unique_ptr<Replayer> replayer = {};
  std::shared_ptr<void> kept = {};
};

namespace {

constexpr int kMostInVain = 5;
constexpr int kMostPostponed = 16;
constexpr int kMostOutdated = 16;
constexpr int64_t kWorthIt = 16;  // replays between two recordings
/// Each holds for its own shapes. A step with more of them gains nothing.
constexpr std::size_t kMostKeys = 32;

/// The calls in which a step that is replayed runs as it is, and is compared.
bool is_compared(int64_t call) { return call == 8 || call == 32 || call == 128 || call % 256 == 0; }

/// Whether all tensors that a form's function refers to are still there.
bool has_outer_tensors(const StepForm& form) {
  return std::ranges::none_of(form.outer, [](const auto& one) { return one.expired(); });
}

}  // namespace

StepCapture::StepCapture(std::shared_ptr<ReplicaGroup> group)
    : group_(std::move(group)), replicas_(static_cast<std::size_t>(group_->num_local_replicas())) {}

StepCapture::~StepCapture() = default;

void StepCapture::add_modes(CaptureKey& key, int64_t r) {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  const auto& modules = group_->host().variables().modules();
  const bool are_same = std::equal(modules.begin(), modules.end(), replica.bindings.begin(), replica.bindings.end(),
                                   [](const auto& now, const auto& then) { return now == then.lock(); });
  if (!are_same) {
    replica.bindings.assign(modules.begin(), modules.end());
    replica.modules.clear();
    for (const auto& one : modules) {
      for (auto& part : one->module(r)->modules()) replica.modules.push_back(std::move(part));
    }
  }
  uint64_t bits = 0;
  std::size_t count = 0;
  for (const auto& one : replica.modules) {
    bits = bits << 1 | (one->is_training() ? 1u : 0u);
    if (++count % 63 == 0) key.add_number(static_cast<int64_t>(std::exchange(bits, 0)));
  }
  key.add_number(static_cast<int64_t>(bits));
}

ReplicaRecording& StepCapture::recording_of(const ReplicaContext& context, CaptureKey key) {
  ContextAccess::check_is_current(context, "a captured step");
  if (&ContextAccess::group(context) != group_.get()) {
    throw UsageError("LS-OTHER-STRATEGY", "a captured step was given a context of another strategy",
                     "run it in the strategy that made it");
  }
  key.add_thread_modes();
  const int64_t r = ContextAccess::local_index(context);
  add_modes(key, r);
  auto& all = replicas_[static_cast<std::size_t>(r)].recordings;
  for (auto& one : all) {
    if (one->key == key) return *one;
  }
  if (all.size() >= kMostKeys) {
    if (all.size() == kMostKeys) {
      all.push_back(std::make_shared<ReplicaRecording>(CaptureKey()));
      give_up(*all.back(),
              fmt::format("was given arguments of more than {} kinds: each shape, and each number, is one", kMostKeys));
    }
    return *all.back();
  }
  const std::string unknown = key.unknown();
  const std::string shapes = key.describe();
  key.forget_tensors();
  all.push_back(std::make_shared<ReplicaRecording>(std::move(key)));
  all.back()->shapes = shapes;
  if (!unknown.empty()) give_up(*all.back(), "is given a " + unknown + ", of which nobody knows whether it is equal");
  return *all.back();
}

void StepCapture::give_up(ReplicaRecording& recording, const std::string& why, const char* since) const {
  recording.refusal = why;
  recording.last.reset();
  recording.replayer.reset();
  recording.kept.reset();
  group_->findings().add("LS-NOT-CAPTURED", why, group_->step(), [&] {
    return fmt::format("step {}: a captured step runs as it is, without a replay: the step {}{}", group_->step(), why,
                       since);
  });
}

int64_t StepCapture::num_replayed() const {
  int64_t all = 0;
  for (const OfReplica& replica : replicas_) {
    for (const auto& one : replica.recordings) all += one->replayed;
  }
  return all;
}

std::string StepCapture::describe() const {
  std::string text;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    if (replicas_[r].recordings.empty())
      text += fmt::format("replica {}: not called\n", group_->first_replica() + static_cast<int64_t>(r));
    for (const auto& one : replicas_[r].recordings) {
      text += fmt::format("replica {}, {}: ", group_->first_replica() + static_cast<int64_t>(r), one->shapes);
      if (!one->refusal.empty()) {
        text += fmt::format("runs as it is, because the step {}\n", one->refusal);
      } else if (one->replayer) {
        const StepForm& form = one->replayer->form();
        const int64_t calls = form.num_calls();
        const int64_t views = form.num_views();
        text += fmt::format("replayed in {} of {}: {} and {} of the library, without {}\n", one->replayed,
                            counted(one->calls, "call"),
                            counted(static_cast<int64_t>(form.nodes.size()) - calls - views, "operator"),
                            counted(calls, "call"), counted(views, "view"));
        // All replicas have recorded the same function.
        if (r == 0) text += text_of(form);
      } else {
        text += fmt::format(
            "recorded {}, to be replayed when two recordings are equal{}\n",
            one->recorded == 1 ? std::string("once") : fmt::format("{} times", one->recorded),
            one->last_difference.empty() ? std::string() : "; the last two differ: " + one->last_difference);
      }
    }
  }
  return text;
}

CapturedCall::CapturedCall(StepCapture& capture, const ReplicaContext& context, CaptureKey key)
    : capture_(capture),
      context_(context),
      arguments_(key.tensors()),
      recording_(capture.recording_of(context, std::move(key))) {
  const int64_t call = recording_.calls++;
  if (!recording_.refusal.empty() || StepRecorder::current()) return;
  recording_.is_due = recording_.is_due || is_compared(call);
  if (!recording_.replayer || recording_.is_due) {
    way_ = Way::kRecord;
    return;
  }
  switch (recording_.replayer->readiness()) {
    case Replayer::Readiness::kReady: way_ = Way::kReplay; break;
    case Replayer::Readiness::kNotNow: break;
    case Replayer::Readiness::kOutdated:
      recording_.replayer.reset();
      if (recording_.replayed > recording_.replayed_then + kWorthIt) recording_.outdated = 0;
      recording_.replayed_then = recording_.replayed;
      if (++recording_.outdated > kMostOutdated) {
        capture.give_up(recording_,
                        "is outdated again and again: a tensor that it refers to is replaced by another one, or "
                        "variables are frozen and released");
        break;
      }
      way_ = Way::kRecord;
  }
}

CapturedCall::~CapturedCall() = default;

void CapturedCall::refuse(const std::string& why) {
  way_ = Way::kAsItIs;
  if (recording_.refusal.empty()) capture_.give_up(recording_, why);
}

const void* CapturedCall::kept() const { return recording_.kept.get(); }

std::vector<at::Tensor> CapturedCall::replay() {
  std::vector<at::Tensor> results = recording_.replayer->run(context_, arguments_);
  ++recording_.replayed;
  return results;
}

void CapturedCall::record(FunctionRef<void()> fn, FunctionRef<CaptureKey()> results,
                          FunctionRef<std::shared_ptr<void>()> keep) {
  const StepForm* const known = recording_.replayer ? &recording_.replayer->form()
                                : recording_.last   ? &*recording_.last
                                                    : nullptr;
  Recorder recorder(context_, arguments_, known);
  if (recorder.is_postponed()) {
    fn();
    if (++recording_.postponed > kMostPostponed) capture_.give_up(recording_, recorder.refusal());
    return;
  }
  CaptureKey returned;
  {
    const RecorderScope recorded(&recorder);
    const ListeningScope heard(recorder);
    fn();
    const DeafScope deaf;
    returned = results();
    if (!returned.unknown().empty())
      recorder.refuse("returns a " + returned.unknown() + ", which cannot be looked into");
    recorder.end(returned.tensors());
  }
  returned.forget_tensors();
  if (!recorder.refusal().empty()) return capture_.give_up(recording_, recorder.refusal());
  ++recording_.recorded;
  recording_.postponed = 0;
  StepForm form = std::move(recorder.form());
  if (recording_.replayer) {
    recording_.is_due = false;
    std::string how = difference(recording_.replayer->form(), form);
    if (how.empty() && !(returned == recording_.last_results)) how = "in what the function returned beside tensors";
    if (!how.empty()) {
      capture_.give_up(recording_, "is another one than it was when it was recorded: " + how,
                       "; what it did since the last comparison may have repeated old values; give what changes as an "
                       "argument of run()");
    }
    return;
  }
  recording_.last_difference.clear();
  if (recording_.last) {
    std::string how = difference(*recording_.last, form);
    if (how.empty() && !(returned == recording_.last_results)) how = "in what the function returned beside tensors";
    if (how.empty() && !has_outer_tensors(form))
      how = "in a tensor that the function makes without an operator, or keeps for one run";
    if (how.empty()) {
      recording_.last.reset();
      recording_.last_results = std::move(returned);
      recording_.kept = keep();
      recording_.replayer = std::make_unique<Replayer>(std::move(form), ContextAccess::local_index(context_));
      recording_.in_vain = 0;
      return;
    }
    recording_.last_difference = how;
    if (++recording_.in_vain >= kMostInVain) return capture_.give_up(recording_, "is another one in each run: " + how);
  }
  recording_.last = std::move(form);
  recording_.last_results = std::move(returned);
}

}  // namespace lockstep::internal::capture
