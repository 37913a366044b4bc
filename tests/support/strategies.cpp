#include "tests/support/strategies.h"

#include "tests/support/programs.h"

namespace lockstep::testing {

namespace {

template <int64_t replicas, int num_lanes, Copies copies>
std::unique_ptr<Strategy> mirrored() {
  return std::make_unique<MirroredStrategy>(
      MirroredOptions{.devices = lanes(num_lanes), .replicas = replicas, .copies = copies, .seed = 3});
}

std::unique_ptr<Strategy> one_device() { return std::make_unique<OneDeviceStrategy>(OneDeviceOptions{.seed = 3}); }

template <int64_t replicas, int num_lanes>
std::unique_ptr<Strategy> central_storage() {
  return std::make_unique<CentralStorageStrategy>(
      CentralStorageOptions{.devices = lanes(num_lanes), .replicas = replicas, .seed = 3});
}

}  // namespace

const std::vector<StrategyCase>& strategy_cases() {
  static const std::vector<StrategyCase> cases{
      {"OneDevice", one_device},
      {"Mirrored1", mirrored<1, 1, Copies::kPerMemory>},
      {"Mirrored4", mirrored<4, 1, Copies::kPerMemory>},
      {"Mirrored6On2Lanes", mirrored<6, 2, Copies::kPerMemory>},
      {"Mirrored3WithCopies", mirrored<3, 1, Copies::kPerReplica>},
      {"Mirrored4On2LanesWithCopies", mirrored<4, 2, Copies::kPerReplica>},
      {"CentralStorage4On2Lanes", central_storage<4, 2>},
  };
  return cases;
}

std::ostream& operator<<(std::ostream& stream, const StrategyCase& one) { return stream << one.name; }

}  // namespace lockstep::testing
