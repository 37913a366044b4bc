// The forms in which the library moves nothing between workers: of one process, of replicas that train by themselves,
// and with a reducer of the program's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/optim/forms/form.h"

namespace lockstep::internal::inline optim {

/// An update of this process alone: it adds its replicas' own gradients in tree order, updates all blocks, and writes
/// new values over the old ones.
class AloneForm final : public Form {
 public:
  explicit AloneForm(UpdateWork& work);
  const StageTables& stages() const override;
  void begin_step(const StepOptions& options) override;
};

/// Each replica updates its own components by its own gradients.
class LocalForm final : public Form {
 public:
  LocalForm(UpdateWork& work, const AskedForm& asked);
  const StageTables& stages() const override;
  void begin_step(const StepOptions& options) override;

 private:
  const AskedForm asked_;
};

/// Sums are made one by one, by a reducer of the program's own: in one process on its lanes; with several workers on
/// one thread, and then every worker updates all.
class ReducerForm final : public Form {
 public:
  ReducerForm(UpdateWork& work, const AskedForm& asked);
  const StageTables& stages() const override;
  void begin_step(const StepOptions& options) override;
  std::string text() const override;
  FormOfVariable of_variable(std::size_t i) const override;
  int64_t num_computations() const override { return work_.group->num_workers(); }
  int64_t computation_of(int64_t worker) const override { return worker; }

  void reduce(int lane, int num_lanes);
  void reduce_across_workers() { reduce(0, 1); }

 private:
  const AskedForm asked_;
};

}  // namespace lockstep::internal::optim
