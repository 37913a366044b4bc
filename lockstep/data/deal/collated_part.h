// A replica's part as a function of the program's own makes it: see DistributeOptions::collate.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/core/ids.h"
#include "lockstep/data/batch.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/deal/collate.h"
#include "lockstep/data/distribute_options.h"

namespace lockstep::internal::inline data {

/// Throws the UsageErrors of options that do not go with a collate function, and of a source that has no samples of the
/// type that the function takes. Null: the source is a stream.
void check_collate(const DistributeOptions& options, const lockstep::data::Source* source);

/// A sample as the function takes it, with its id.
struct SampleToCollate {
  AnySample value;
  int64_t id = 0;
};
/// Of a function that takes Batches: `row` is one sample, with its id, in memory of its own.
SampleToCollate batch_to_collate(Batch row);
/// The samples at the places of a data set, each read by itself where the function takes Batches: they need not be
/// alike.
std::vector<SampleToCollate> samples_to_collate(const Collate& collate, const Dataset& dataset,
                                                std::span<const int64_t> places);

/// Calls the function for the parts of one epoch. Its random numbers are a function of (seed, epoch, samples). Any
/// thread.
class PartMaker {
 public:
  /// `data` describes the samples' source; `worker` is named in errors, where there are several.
  PartMaker(Collate collate, uint64_t seed, int64_t epoch, std::string data, std::optional<int64_t> worker);

  const Collate& collate() const { return collate_; }
  /// The part of `replica`, made of its samples, of which there is at least one: checked, with ids in memory of its
  /// own. What the function throws is nested in a DataError that names the samples, the replica and the worker.
  Batch part(std::vector<SampleToCollate> samples, ReplicaId replica) const;
  /// The part of `replica`, which has no samples: the dtypes and shapes that the function would give for none, found by
  /// what it makes of one sample, and of the same sample twice. A dimension that grows by that is shrunk by as much;
  /// what does not grow stays as it is of one. Where the function cannot take two, the first dimension is empty.
  /// `sample` gives the sample afresh each time.
  Batch without_samples(FunctionRef<SampleToCollate()> sample, ReplicaId replica) const;

 private:
  std::string text_of(std::span<const int64_t> ids, ReplicaId replica) const;

  const Collate collate_;
  const lockstep::data::Pass pass_;
  const std::string data_;
  const std::optional<int64_t> worker_;
};

}  // namespace lockstep::internal::data
