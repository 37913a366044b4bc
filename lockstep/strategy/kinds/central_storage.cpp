#include "lockstep/strategy/kinds/central_storage.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/resolve_tuning.h"
#include "lockstep/strategy/setup.h"

namespace lockstep {

namespace {

/// One copy; describe() also says where it lies.
class CentralPlacement final : public Placement {
 public:
  explicit CentralPlacement(std::string storage) : storage_(std::move(storage)), one_copy_(storage_) {}
  std::string describe() const override { return fmt::format("one copy for all replicas, in storage {}", storage_); }
  std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const override {
    return one_copy_.copies(variable, lanes);
  }

 private:
  const std::string storage_;
  const OneCopyPlacement one_copy_;
};

std::string checked_storage(std::string storage) {
  if (internal::parse_device(storage).type == "cpu") return storage;
  throw UsageError(
      "LS-DEVICE",
      fmt::format(".storage is '{}', and this version of Lockstep keeps variables in host memory only", storage),
      "leave .storage out, or write \"cpu\"");
}

StrategySetup setup_of(CentralStorageOptions options) {
  return {.name = "CentralStorageStrategy",
          .topology = std::make_shared<HostTopology>(std::move(options.devices), options.replicas),
          .placement = std::make_shared<CentralPlacement>(checked_storage(std::move(options.storage))),
          .seed = options.seed,
          .threads_per_replica = options.threads_per_replica,
          .verify_every = options.verify_every,
          .denormals = options.denormals,
          .factored_gradients = options.factored_gradients};
}

}  // namespace

CentralStorageStrategy::CentralStorageStrategy(CentralStorageOptions options)
    : Strategy(setup_of(internal::resolve_tuning("CentralStorageStrategy", std::move(options)))) {}

CentralStorageStrategy::~CentralStorageStrategy() = default;

}  // namespace lockstep
