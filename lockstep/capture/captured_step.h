// A step that is recorded once and then replayed, without its function and without the framework around operators.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/capture/capture_key.h"
#include "lockstep/capture/step_capture.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/tensors_in.h"

namespace lockstep {

/// Made by Strategy::capture(fn), and given to run() and evaluate() in place of `fn`:
///
///     auto step = strategy.capture([&](ReplicaContext& ctx, const Batch& batch) { ... });
///     for (const auto& batch : data.epoch(0)) strategy.run(batch, step);
///
/// The first calls for each shape of arguments run `fn` and record it, each replica its own. Once two recordings are
/// equal, the step is replayed: the same operators with the same arguments in the same order, and the same calls of the
/// library, so that each result has the bits of `fn`. `fn` is not called then: what it does besides, such as counting
/// or writing a log, happens in the recorded calls alone. Numbers of the program that `fn` uses are those of the
/// recorded calls: give what changes from run to run as an argument. Tensors that `fn` refers to are read anew in each
/// run.
///
/// From time to time a call runs `fn` and is compared with the recording. Where a step cannot be recorded, or has
/// changed, it runs as it is from then on, and a finding (LS-NOT-CAPTURED) says why. docs/capture.md has the list.
///
/// What a replay returns has no graph. A handle: its copies mean the same step. It belongs to the strategy that made
/// it.
template <class Fn>
class CapturedStep {
 public:
  /// Inside a step, on the replica's thread; run() and evaluate() call it.
  template <class... Args>
  requires std::is_invocable_v<Fn&, ReplicaContext&, const Args&...>
  auto operator()(ReplicaContext& context, const Args&... args) const {
    using Result = std::decay_t<std::invoke_result_t<Fn&, ReplicaContext&, const Args&...>>;
    internal::CaptureKey key;
    (internal::add_to_key(key, args), ...);
    internal::CapturedCall call(*capture_, context, std::move(key));
    using Way = internal::CapturedCall::Way;
    if constexpr (std::is_void_v<Result>) {
      const auto run = [&] { std::invoke(*fn_, context, args...); };
      switch (call.way()) {
        case Way::kAsItIs: return run();
        case Way::kReplay: return static_cast<void>(call.replay());
        case Way::kRecord:
          return call.record(
              run, [] { return internal::CaptureKey(); }, [] { return std::shared_ptr<void>(); });
      }
    } else if constexpr (!std::is_copy_constructible_v<Result>) {
      call.refuse("returns what cannot be copied");
      return Result(std::invoke(*fn_, context, args...));
    } else {
      if (call.way() == Way::kAsItIs) return Result(std::invoke(*fn_, context, args...));
      if (call.way() == Way::kReplay) {
        std::vector<at::Tensor> tensors = call.replay();
        Result result = *static_cast<const Result*>(call.kept());
        std::size_t next = 0;
        internal::visit_tensors(result, [&](at::Tensor& tensor) { tensor = std::move(tensors[next++]); });
        return result;
      }
      std::optional<Result> result;
      call.record([&] { result.emplace(std::invoke(*fn_, context, args...)); },
                  [&] {
                    internal::CaptureKey returned;
                    internal::add_to_key(returned, *result);
                    return returned;
                  },
                  [&]() -> std::shared_ptr<void> {
                    auto kept = std::make_shared<Result>(*result);
                    internal::visit_tensors(*kept, [](at::Tensor& tensor) { tensor = at::Tensor(); });
                    return kept;
                  });
      return *std::move(result);
    }
  }

  /// For each replica of this process and each kind of arguments: how much is replayed, and how often; or why the step
  /// runs as it is. For the first replica also what was recorded, a line for each operator. Outside of runs.
  std::string describe() const { return capture_->describe(); }
  /// How many calls of this process's replicas were replayed. Outside of runs.
  int64_t num_replayed() const { return capture_->num_replayed(); }

  /// For the library's own use.
  CapturedStep(std::shared_ptr<internal::ReplicaGroup> group, Fn fn)
      : capture_(std::make_shared<internal::StepCapture>(std::move(group))), fn_(std::make_shared<Fn>(std::move(fn))) {}

 private:
  std::shared_ptr<internal::StepCapture> capture_;
  std::shared_ptr<Fn> fn_;
};

}  // namespace lockstep
