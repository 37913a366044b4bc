// The values that a checkpoint in memory has, item by item, and whether they fit an item of the run.
#pragma once

#include <ATen/core/TensorBody.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/image.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

/// "slot" and "model.0.weight/exp_avg".
using KindAndName = std::pair<std::string, std::string>;

/// The values of an item in the image, by replica where it has several. Those of other workers' replicas may be
/// undefined; there are none where nothing of the item was read.
struct Saved {
  std::vector<at::Tensor> values;
  bool per_replica = false;
};

std::map<KindAndName, Saved> saved_of(const Image& image);

/// "none", "sum", "mean", "first".
const char* aggregation_text(VariableAggregation aggregation);
/// Back again. Mean for an empty text: older checkpoints do not say it, and running statistics have it. A DataError
/// that names `what` for another text.
VariableAggregation aggregation_of(const std::string& text, const std::string& what);

/// The one value that the values of all replicas stand for, with the bits that the variable reads as: their mean or
/// sum; that of replica 0 where they are not aggregated so, have several shapes or dtypes, or are to be averaged and
/// are no floating-point numbers.
at::Tensor value_of_all(const std::vector<at::Tensor>& values, VariableAggregation aggregation);

/// The values that are for this process, of an item that has one for each replica or one for all. Where the checkpoint
/// is of another number of replicas: see RestoreOptions::allow_other_replicas.
std::vector<at::Tensor> values_here(const Saved& saved, bool per_replica, const Strategy& strategy,
                                    VariableAggregation aggregation);

/// Why `values`, which values_here() gave, cannot be written into `item`; empty where they can. `variable` is the
/// item's, or null.
std::string misfit_text(const StateItem& item, const Saved& saved, const std::vector<at::Tensor>& values,
                        const Variable* variable);

}  // namespace lockstep::internal::checkpoint
