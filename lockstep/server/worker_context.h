// What a scheduled step may do: the object that a worker hands to the step's function.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "lockstep/data/batch.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/variable/worker_values.h"

namespace lockstep {

namespace internal::inline server {
class WorkerTask;
struct StepUnderWay;
struct TableState;
}  // namespace internal::server

/// Valid while the step's function runs, on its thread.
///
/// Within a step each variable has one value: that of its first read in the step, with the step's own changes.
class WorkerContext final : public internal::WorkerValues {
 public:
  /// This worker, from 0.
  int64_t worker_index() const;
  int64_t num_workers() const;
  /// The step's number: how many steps were scheduled before it. In Coordinator::evaluate, how many steps count.
  int64_t step() const;
  /// The mean loss of this part, weighed by the part's share of the round's samples where workers go in step
  /// (`.staleness = 0`); otherwise the loss as it is. In step it needs a batch that this step has taken from a data set
  /// (DistributedDataset::next); the part of a worker's own stream (distribute_to_workers) has the share 1 / W.
  at::Tensor scale_loss(const at::Tensor& mean_loss) const;
  /// Sends all gradients of the step, buffers of the modules that it has used, and its changes to the servers, which
  /// apply them when the step counts, all of them or none. Once in a step; a UsageError (LS-PUSH) otherwise. Consumes
  /// the gradients. A step that changes variables and does not push is pushed when it returns.
  void push(const StepOptions& options = {});
  /// A stream that is a function of (seed, step), and in step of (seed, part, round). LibTorch's random operators draw
  /// from it in the step where they are given no other.
  at::Generator random() const;

  /// For the library's own use.
  Batch batch_of(const DistributedDataset& data) const;
  void take_own_stream() const;
  void note_batch(const Batch& batch) const;
  /// [ids, dim], of the table's dtype.
  at::Tensor rows_of(const std::shared_ptr<internal::TableState>& table, const at::Tensor& ids);
  internal::WorkerTask& task() const { return task_; }

 private:
  friend class internal::WorkerTask;
  WorkerContext(internal::WorkerTask& task, internal::StepUnderWay& step) : task_(task), step_(step) {}
  void check_is_current(const char* call) const;
  void check_is_no_evaluation(const char* call, const char* remedy) const;
  void* module_of(const std::shared_ptr<internal::ModuleBinding>& binding,
                  internal::FunctionRef<MadeModule()> make) override;
  at::Tensor value_of(const Variable& variable) override;
  void change(const Variable& variable, Change change, const at::Tensor& value) override;

  internal::WorkerTask& task_;
  internal::StepUnderWay& step_;
};

}  // namespace lockstep
