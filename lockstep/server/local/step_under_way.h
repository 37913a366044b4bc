// The step whose function a worker runs, and what it has used and changed so far.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/server/local/step_payloads.h"
#include "lockstep/server/protocol/messages.h"
#include "lockstep/variable/variable.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal::inline variable {
class ModuleBinding;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline server {

/// The rows of a table that a step has pulled: as each look-up that needed more pulled them.
struct PulledRows {
  std::shared_ptr<TableState> table;
  std::map<int64_t, int64_t> places = {};  // by id: where it is in all rows, one after another
  std::vector<std::vector<int64_t>> ids = {};
  std::vector<at::Tensor> weights = {};  // of the same rows, [ids, dim], which collect gradients
};

/// What belongs to the step whose function runs.
struct StepUnderWay {
  StepAttempt step = {};
  const EvaluationPart* evaluation = nullptr;  // what the step is in place of a scheduled one
  int64_t part = 0;                            // of its round
  std::optional<double> share;                 // of the batch that it has taken
  bool took_stream = false;                    // of its worker's own
  std::vector<const void*> taken = {};         // data sets that it has a batch of
  bool has_scaled = false;                     // a loss, by scale_loss
  bool has_pushed = false;
  std::vector<const ModuleBinding*> modules = {};  // that it has used
  std::map<const VariableState*, at::Tensor> values = {};
  std::vector<Variable> used = {};  // of `values`
  std::vector<StepPush::Change> changes = {};
  std::map<const c10::TensorImpl*, int64_t> changed =
      {};                             // versions of the worker's tensors, as changes have left them
  std::vector<PulledRows> rows = {};  // by table
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes = {};  // of modules before an evaluation
  bool apply = true;                                                            // what it has pushed
  double coefficient = 1;                                                       // of its gradients
  // Where they are wanted, digests of the batches that it has taken and of what it has pushed.
  uint64_t data = 0;
  uint64_t push = 0;
};

}  // namespace lockstep::internal::server
