// What the tasks of a run hand to each other as payloads (server/protocol/messages.h).
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/protocol/messages.h"
#include "lockstep/server/step_call.h"
#include "lockstep/variable/variable.h"
#include "lockstep/variable/worker_values.h"

namespace lockstep {
class WorkerContext;
}

namespace lockstep::internal::inline server {

/// PulledTensors::at of what a worker has of a variable: of what each server has of it, in the order of parts_of(). In
/// a request to one server it is one. Empty: it has nothing.
using HadAt = std::vector<Position>;

/// Of a PullRequest: which variables the worker wants. The answer is a PulledTensors.
struct WantedVariables {
  std::vector<Variable> variables = {};
  std::vector<HadAt> have = {};  // for each
  int64_t part = 0;              // of the round: whose component of on-read variables
  bool whole = false;            // of on-read variables what a read gives, as in an evaluation
};
/// For each wanted variable a copy of its value, or of what lies of it on that server; an undefined tensor where the
/// worker has it already.
struct PulledTensors {
  Position at = 0;
  std::exception_ptr error = {};  // in place of the values
  std::vector<at::Tensor> values = {};
};

/// Of a PullRequest for rows of a table: each id once. The answer is a PulledTensors with one tensor, [ids, dim].
struct WantedRows {
  std::shared_ptr<TableState> table;
  std::vector<int64_t> ids = {};
};
/// A PullRequest's payload.
using Wanted = std::variant<WantedVariables, WantedRows>;

/// Of a PushRequest: all that a step changes.
struct StepPush {
  struct Gradient {
    Variable variable;
    at::Tensor gradient;
  };
  struct Buffer {
    Variable variable;
    at::Tensor value;
  };
  struct Change {
    Variable variable;
    WorkerValues::Change change = WorkerValues::Change::kAssign;
    at::Tensor value;
  };
  int64_t part = 0;  // of the round
  std::vector<Gradient> gradients = {};
  std::vector<Buffer> buffers = {};
  std::vector<Change> changes = {};  // in their order
  std::vector<RowsOfStep> rows = {};
  StepOptions options = {};
};

/// Parts of evaluations have numbers from here on, and steps those below.
inline constexpr int64_t kFirstEvaluated = int64_t{1} << 62;

/// The arguments of a part of an evaluation.
struct EvaluationPart {
  EvaluateFunction call = {};  // empty: the worker is a process, and knows it by the part's kind
  Batch batch;
  int64_t part = 0;  // of the batch
  int64_t step = 0;  // how many steps count
  StreamKey stream = {};
};
/// Its result.
struct EvaluatedPart {
  PartResult result = {};
  std::vector<StepPush::Change> changes = {};  // as of a step
};

/// Of a StepReport that failed.
struct StepFailure {
  std::exception_ptr error;
};

template <class T>
const T& as(const Payload& payload) {
  return *static_cast<const T*>(payload.get());
}

}  // namespace lockstep::internal::server
