#include "lockstep/comm/world.h"

namespace lockstep::internal {

namespace {

/// Nobody else is there: every agreement is with oneself.
class OneWorker final : public World {
 public:
  int64_t num_workers() const override { return 1; }
  int64_t worker_index() const override { return 0; }
  std::vector<std::string> agree(const std::string& mine) override { return {mine}; }
  void exchange(std::span<const std::span<const std::byte>>, std::span<const std::span<std::byte>>) override {}
  void abort(const std::string&) noexcept override {}
};

}  // namespace

std::shared_ptr<World> one_worker() { return std::make_shared<OneWorker>(); }

}  // namespace lockstep::internal
