// Random training programs, with gradients kept as factors and products of few samples of our own wherever that can be,
// and nowhere: equal bits.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/log.h"
#include "lockstep/linear/few_samples_product.h"
#include "tests/linear/own_strategies.h"
#include "tests/linear/random_program.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::Custom;
using testing::FactoredGradientsAre;
using testing::lanes;
using testing::MixedPlacement;
using testing::OwnReducer;
using testing::RandomProgram;
using torch::Tensor;

/// How many programs are compared: LOCKSTEP_RANDOM_PROGRAMS says it where many are wanted; 10,000 take three minutes.
unsigned num_programs() {
  if (const char* const asked = std::getenv("LOCKSTEP_RANDOM_PROGRAMS"))
    return static_cast<unsigned>(std::stoul(asked));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 500;
#else
  return 2000;
#endif
}

std::vector<std::unique_ptr<Strategy>> strategies(const char* factored) {
  const FactoredGradientsAre scope(factored);
  std::vector<std::unique_ptr<Strategy>> all;
  all.push_back(std::make_unique<OneDeviceStrategy>());
  for (const int64_t replicas : {1, 2, 3}) {
    all.push_back(std::make_unique<MirroredStrategy>(MirroredOptions{.devices = lanes(1), .replicas = replicas}));
  }
  all.push_back(std::make_unique<MirroredStrategy>(
      MirroredOptions{.devices = lanes(2), .replicas = 4, .copies = Copies::kPerReplica}));
  all.push_back(std::make_unique<CentralStorageStrategy>(
      CentralStorageOptions{.devices = lanes(2), .replicas = 2, .denormals = Denormals::kKeep}));
  const auto topology = std::make_shared<HostTopology>(lanes(2), 2, /*pinned=*/false);
  all.push_back(std::make_unique<Custom>(
      StrategySetup{.name = "Reduced", .topology = topology, .reducer = std::make_shared<OwnReducer>()}));
  all.push_back(std::make_unique<Custom>(
      StrategySetup{.name = "Placed", .topology = topology, .placement = std::make_shared<MixedPlacement>()}));
  return all;
}

using Outcome = std::vector<std::pair<std::string, Tensor>>;

/// What `run` gives, or the codes of the error that it throws: a gradient may overflow.
std::pair<Outcome, std::string> outcome_of(const std::function<Outcome()>& run) {
  try {
    return {run(), ""};
  } catch (const ReplicaError& error) {
    return {{}, error.code()};
  }
}

/// How many findings there are, and the last one.
std::string last_finding(const Strategy& strategy) {
  const std::vector<Finding> all = strategy.findings();
  if (all.empty()) return "none";
  return fmt::format("{}: {}, {} times from step {}: {}", all.size(), all.back().code, all.back().count,
                     all.back().step, all.back().text);
}

/// Nothing is logged while it lives.
struct Quiet {
  Quiet() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~Quiet() { set_log_sink({}); }
};

TEST(FactoredGradientsFuzz, NoBitAndNoFindingDependsOnFactorsOrProductsOfOurOwn) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const Quiet quiet;
  const testing::FewSamplesProductsAre none("off");
  const int64_t products_before = internal::num_few_samples_products();
  std::vector<std::unique_ptr<Strategy>> with;
  std::vector<std::unique_ptr<Strategy>> without;
  int64_t factored = 0;
  unsigned compared = 0;
  std::map<std::string, int> errors;  // by code; "" where there was none
  const unsigned programs = num_programs();
  for (unsigned seed = 0; seed < programs && !::testing::Test::HasFailure(); ++seed) {
    if (seed % 300 == 0) {  // the list of findings would grow long
      with = strategies("always");
      without = strategies("off");
    }
    const std::size_t kind = seed % with.size();
    RandomProgram program(seed);
    RandomProgram same(seed);
    const auto [expected, error] = outcome_of([&] { return program.run(*without[kind]); });
    const auto [found, other_error] = [&] {
      const testing::FewSamplesProductsAre products("always");
      return outcome_of([&] { return same.run(*with[kind]); });
    }();
    ASSERT_EQ(error, other_error) << "program " << seed;
    factored += same.num_factored();
    if (error.empty()) ++compared;
    ++errors[error];
    ASSERT_EQ(last_finding(*with[kind]), last_finding(*without[kind]))
        << "program " << seed << ", strategy " << kind << "\n"
        << program.text();
    ASSERT_EQ(found.size(), expected.size()) << "program " << seed;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Tensor a = expected[i].second.contiguous().clone();
      const Tensor b = found[i].second.contiguous().clone();
      ASSERT_EQ(a.sizes(), b.sizes()) << "program " << seed << ", tensor " << i;
      ASSERT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()), 0)
          << "program " << seed << ", strategy " << kind << ": '" << expected[i].first << "' differs by "
          << (a - b).abs().max().item<double>() << "\n"
          << program.text();
    }
  }
  EXPECT_GT(factored, int64_t{programs} / 6);  // many programs look at their gradients, and one strategy keeps none
  EXPECT_GT(compared, programs * 9 / 10) << fmt::format("{}", fmt::join(errors, ", "));
  if (internal::few_samples_products()) {
    EXPECT_GT(internal::num_few_samples_products(), products_before);
  }
}

}  // namespace
}  // namespace lockstep
