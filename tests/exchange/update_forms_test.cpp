// The forms in which several workers update: each can be asked for, is shown with its bytes, and has the same bits.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "tests/support/factored.h"
#include "tests/support/layer.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::EnvironmentScope;
using testing::FactoredGradientsAre;
using testing::Layer;
using testing::row_of;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

TEST(UpdateForms, HaveTheSameBitsAndAreShownWithTheBytesOfAStep) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const FactoredGradientsAre factored("always");
  constexpr int kSteps = 3;
  const auto trained = [&](int64_t workers, const char* form, const auto& look) {
    const EnvironmentScope scope("LOCKSTEP_UPDATE_FORM", form);
    return testing::run_workers({workers, 4}, [&](Strategy& strategy) {
      const Layer layer(strategy);
      EXPECT_EQ(strategy.describe().find("  update  "), std::string::npos) << "before the first step";
      for (int step = 0; step < kSteps; ++step) layer.step(strategy);
      look(strategy);
      return layer.values();
    });
  };
  const auto expected = trained(1, "auto", [](Strategy& strategy) {
                          EXPECT_EQ(strategy.describe().find("  update  "), std::string::npos) << "of one worker";
                        }).front();
  struct Form {
    const char* name;
    const char* weight;  // how the row of each variable ends on two workers, where both send as much
    const char* bias;
  };
  // Factors: 2 samples of each of two replicas, 128 + 64 numbers each and the fill of panels, and the sum of a vector,
  // of which each worker owns a half or one of them owns it all; either way it sends one partial sum or one sum.
  for (const Form& form : {Form{"auto", "  host memory  0 B", "  host memory  0 B"},
                           Form{"host-memory", "  host memory  0 B", "  host memory  0 B"},
                           Form{"sums", "  sums  32.0 KiB", "  sums, during backward  512 B"},
                           Form{"factors", "  factors  3.5 KiB", "  sums, during backward  512 B"}}) {
    for (const int64_t workers : {2, 3, 4}) {
      const auto all = trained(workers, form.name, [&](Strategy& strategy) {
        const std::string weight = row_of(strategy, "weight");
        const std::string bias = row_of(strategy, "bias");
        if (workers != 2) return;
        EXPECT_TRUE(ends_with(weight, form.weight)) << form.name << ": " << weight;
        EXPECT_TRUE(ends_with(bias, form.bias)) << form.name << ": " << bias;
      });
      for (const auto& values : all) {
        ASSERT_EQ(values.size(), expected.size());
        for (std::size_t i = 0; i < values.size(); ++i)
          EXPECT_TRUE(torch::equal(values[i], expected[i])) << form.name << ", " << workers << " workers, value " << i;
      }
    }
  }
}

TEST(UpdateForms, AreAnErrorOnAllWorkersWhereTheyCannotBe) {
  const EnvironmentScope form("LOCKSTEP_UPDATE_FORM", "host-memory");
  const EnvironmentScope memory("LOCKSTEP_HOST_MEMORY", "off");
  testing::expect_step_error_on_all<UsageError>({3, 4}, [](Strategy& strategy) { Layer(strategy).step(strategy); },
                                                "LS-UPDATE-FORM", {"host memory", "LOCKSTEP_HOST_MEMORY is off"});
}

class InForm final : public Strategy {
 public:
  InForm(std::shared_ptr<World> world, UpdateForm form)
      : Strategy(StrategySetup{.name = "InForm",
                               .topology = std::make_shared<HostTopology>(testing::lanes(1), 2, false),
                               .world = std::move(world),
                               .update_form = form}) {}
};

/// OPTION is the form as a number of UpdateForm.
WORKER_BODY(asks_for_a_form) {
  torch::set_num_threads(1);
  const auto form = static_cast<UpdateForm>(std::atoi(std::getenv("OPTION")));
  InForm strategy(join(resolve_cluster(), {.engine = "shared-memory"}), form);
  const Layer layer(strategy);
  try {
    layer.step(strategy);
    testing::report("nothing was thrown");
  } catch (const ReplicaError& error) {
    testing::report(error.what());
  }
}

TEST(UpdateForms, ThatDifferAreNamedOnAllWorkers) {
  for (const bool by_option : {true, false}) {
    testing::WorkerProcesses workers("asks_for_a_form", 2, [&](int64_t w) {
      const UpdateForm form = w == 0 ? UpdateForm::kSums : UpdateForm::kFactors;
      return testing::WorkerProcesses::Environment{
          {"LOCKSTEP_UPDATE_FORM", by_option ? "auto" : internal::name_of(form)},
          {"OPTION", std::to_string(static_cast<int>(by_option ? form : UpdateForm::kHostMemory))},
          {"LOCKSTEP_NUM_WORKERS", "2"},
          {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
          {"LOCKSTEP_LOCAL_WORKER", std::to_string(w)},
          {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:4000"},
          {"LOCKSTEP_JOB_ID", "update-forms-" + std::to_string(getpid()) + (by_option ? "a" : "b")},
          {"LOCKSTEP_SECRET", "a secret of the test"}};
    });
    for (const auto& one : workers.expect_all("", std::chrono::seconds(60))) {
      for (const char* value : {"[LS-WORKER-ORDER]", "worker 0", "asked for sums", "worker 1", "asked for factors"})
        EXPECT_NE(one.text.find(value), std::string::npos) << value << " in " << one.text;
    }
  }
}

/// The second of two replicas has no gradient in the step.
std::string digest_after_a_step(Strategy& strategy) {
  const Layer layer(strategy);
  strategy.run([&](ReplicaContext& ctx) {
    const torch::Tensor x = torch::arange(2 * Layer::kColumns).to(torch::kFloat).cos().view({2, Layer::kColumns});
    if (ctx.replica_id() == 0) torch::linear(x, layer.weight.value(ctx), layer.bias.value(ctx)).pow(2).sum().backward();
    layer.optimizer.step(ctx);
  });
  return sha256_of({{"weight", layer.weight.read()}, {"bias", layer.bias.read()}});
}

WORKER_BODY(steps_with_its_own_loops) {
  torch::set_num_threads(1);
  InForm strategy(join(resolve_cluster(), {.engine = "shared-memory"}), UpdateForm::kAuto);
  testing::report("digest " + digest_after_a_step(strategy));
}

TEST(UpdateForms, SendNoFactorsToAWorkerThatHasNoLoopsForThem) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const FactoredGradientsAre factored("always");
  testing::WorkerProcesses workers("steps_with_its_own_loops", 2, [&](int64_t w) {
    return testing::WorkerProcesses::Environment{
        {"LOCKSTEP_SIMD", w == 1 ? "plain" : "avx512"}, {"LOCKSTEP_NUM_WORKERS", "2"},
        {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},   {"LOCKSTEP_LOCAL_WORKER", std::to_string(w)},
        {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:4000"},   {"LOCKSTEP_JOB_ID", "loops-" + std::to_string(getpid())},
        {"LOCKSTEP_SECRET", "a secret of the test"}};
  });
  const std::string expected = "digest " + testing::run_workers({1, 2}, digest_after_a_step).front();
  for (const auto& one : workers.expect_all("digest ", std::chrono::seconds(60))) EXPECT_EQ(one.text, expected);
}

TEST(UpdateForms, WithoutANameAreRefused) {
  testing::expect_error<UsageError>([] { MultiWorkerMirroredStrategy({.update_form = static_cast<UpdateForm>(9)}); },
                                    "LS-OPTION", {".update_form is 9"});
}

TEST(UpdateForms, RefuseAnotherWordInTheEnvironment) {
  const EnvironmentScope form("LOCKSTEP_UPDATE_FORM", "slices");
  testing::expect_error<UsageError>([] { MirroredStrategy strategy({.devices = {"cpu:0"}}); }, "LS-ENVIRONMENT",
                                    {"LOCKSTEP_UPDATE_FORM", "slices"});
}

}  // namespace
}  // namespace lockstep
