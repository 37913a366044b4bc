// The World of a process that is the only worker of its run.
#include "lockstep/comm/world.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

/// There is no other worker: its own record is all that agree() returns.
class OneWorker final : public World {
 public:
  int64_t num_workers() const override { return 1; }
  int64_t worker_index() const override { return 0; }
  std::vector<std::string> agree(const std::string& mine) override { return {mine}; }
  void exchange(std::span<const std::span<const std::byte>>, std::span<const std::span<std::byte>>) override {}
  std::string describe() const override { return "one worker"; }
  void abort(const std::string&) noexcept override {}
};

}  // namespace

std::shared_ptr<World> one_worker() { return std::make_shared<OneWorker>(); }

void require_one_for_each_worker(std::size_t to, std::size_t from, int64_t workers) {
  const auto count = static_cast<std::size_t>(workers);
  if (to == count && from == count) return;
  throw UsageError("LS-COUNT", fmt::format("exchange() was given {} and {} entries for {} workers", to, from, workers),
                   "give one entry for each worker, an empty one for this worker itself");
}

}  // namespace lockstep::internal::comm
