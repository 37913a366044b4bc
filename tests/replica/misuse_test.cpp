// Breaks each rule about which call is allowed where.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <future>
#include <limits>
#include <string_view>
#include <thread>

#include "lockstep/core/counted.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;

class Misuse : public ::testing::TestWithParam<int64_t> {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = GetParam()}};
  PerReplica<torch::Tensor> ones_ = strategy_.per_replica([](ReplicaId) { return torch::ones({2}); });
  /// `fn`, which knows no context, is refused inside a step, by its name.
  template <class Fn>
  void expect_refused_inside(Fn fn, std::string_view call, const testing::Where& where = testing::Where::current()) {
    expect_step_error<UsageError>([&] { strategy_.run([&](ReplicaContext&) { fn(); }); }, "LS-INSIDE-STEP",
                                  {call, "replica 0", "step 0"}, where);
  }
};

TEST_P(Misuse, ACrossReplicaCallInsideAStepIsRefusedByName) {
  const auto variable = strategy_.make_variable(torch::ones({2}), {.name = "v"});
  expect_refused_inside([&] { strategy_.reduce(Reduction::kSum, ones_); }, "Strategy::reduce");
  expect_refused_inside([&] { strategy_.gather(ones_); }, "Strategy::gather");
  expect_refused_inside([&] { strategy_.broadcast(0, torch::ones({2})); }, "Strategy::broadcast");
  expect_refused_inside([&] { variable.read(); }, "Variable::read");
  expect_refused_inside([&] { variable.assign(torch::ones({2})); }, "Variable::assign");
  expect_refused_inside([&] { variable.components(); }, "Variable::components");
  expect_refused_inside([&] { strategy_.make_variable(torch::ones({2})); }, "Strategy::make_variable");
  expect_refused_inside([&] { strategy_.make_module([] { return torch::nn::Linear(2, 2); }); },
                        "Strategy::make_module");
  expect_refused_inside([&] { strategy_.variables(); }, "Strategy::variables");
  expect_refused_inside([&] { strategy_.on_chief([] { return 1; }); }, "Strategy::on_chief");
  expect_refused_inside([&] { strategy_.per_replica([](ReplicaId) { return 1; }); }, "Strategy::per_replica");
  expect_refused_inside([&] { strategy_.local_results(ones_); }, "Strategy::local_results");
}

TEST_P(Misuse, ANestedRunIsRefused) {
  expect_refused_inside([&] { strategy_.run([](ReplicaContext&) {}); }, "Strategy::run");
  expect_refused_inside([&] { strategy_.evaluate([](ReplicaContext&) {}); }, "Strategy::evaluate");
  OneDeviceStrategy other;
  expect_refused_inside([&] { other.run([](ReplicaContext&) {}); }, "Strategy::run");
}

TEST_P(Misuse, ARunInsideAMergeFunctionIsRefused) {
  const auto nested = [](Strategy& strategy) { strategy.run([](ReplicaContext&) {}); };
  expect_step_error<UsageError>([&] { strategy_.run([&](ReplicaContext& ctx) { ctx.merge_call(nested); }); },
                                "LS-NESTED-CALL", {"Strategy::run", "merge_call"});
}

TEST_P(Misuse, AContextIsRefusedAfterItsStep) {
  ReplicaContext* kept = nullptr;
  strategy_.run([&](ReplicaContext& ctx) { kept = &ctx; });
  const auto expect_refused = [&](auto fn, std::string_view call) {
    expect_error<UsageError>(fn, "LS-OUTSIDE-STEP", {call});
  };
  expect_refused([&] { kept->replica_id(); }, "replica_id()");
  expect_refused([&] { kept->all_reduce(Reduction::kSum, torch::ones({1})); }, "all_reduce");
  expect_refused([&] { kept->random(); }, "random()");
  expect_refused([&] { kept->step(); }, "step()");
  expect_refused([&] { kept->device(); }, "device()");
  expect_refused([&] { kept->num_replicas(); }, "num_replicas()");
  expect_refused([&] { kept->scale_loss(torch::ones({}), 1, 2); }, "scale_loss");
  expect_refused([&] { kept->merge_call([](Strategy&) {}); }, "merge_call");
}

TEST_P(Misuse, AContextIsRefusedOnAnotherThread) {
  const auto on_another = [](ReplicaContext& ctx) { std::async(std::launch::async, [&] { return ctx.step(); }).get(); };
  expect_step_error<UsageError>([&] { strategy_.run(on_another); }, "LS-OUTSIDE-STEP", {"step()"});
}

TEST_P(Misuse, AContextIsRefusedInAMergeFunction) {
  const auto merge = [](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) { ctx.all_reduce(Reduction::kSum, torch::ones({1})); });
  };
  expect_step_error<UsageError>([&] { strategy_.run(merge); }, "LS-OUTSIDE-STEP", {"all_reduce"});
}

TEST_P(Misuse, AnotherReplicasContextIsRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "one replica has no other's context";
  std::vector<ReplicaContext*> contexts(GetParam());
  strategy_.run([&](ReplicaContext& ctx) { contexts[ctx.replica_id()] = &ctx; });
  const auto error = error_from<ReplicaError>(
      [&] { strategy_.run([&](ReplicaContext& ctx) { contexts[(ctx.replica_id() + 1) % GetParam()]->step(); }); });
  expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-OUTSIDE-STEP",
                           {"step()", "replica 0", "replica 1"});
}

TEST_P(Misuse, ASecondConcurrentCallIsRefused) {
  std::promise<void> running;
  std::promise<void> finish;
  auto done = finish.get_future().share();
  std::thread other([&] {
    strategy_.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == 0) {
        running.set_value();
        done.wait();
      }
    });
  });
  running.get_future().wait();
  expect_error<UsageError>([&] { strategy_.run([](ReplicaContext&) {}); }, "LS-CONCURRENT-CALL", {"Strategy::run"});
  expect_error<UsageError>([&] { strategy_.reduce(Reduction::kSum, ones_); }, "LS-CONCURRENT-CALL",
                           {"Strategy::reduce"});
  finish.set_value();
  other.join();
  strategy_.run([](ReplicaContext&) {});  // free again
}

TEST_P(Misuse, ScaleLossRefusesCountsThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<double, double>> counts{
      {1, infinity}, {infinity, infinity}, {0, infinity}, {nan, nan}, {nan, 1},
      {1, nan},      {infinity, 1},        {-infinity, 1}};
  for (const auto& [part, whole] : counts) {
    testing::expect_step_error<UsageError>(
        [&, a = part, b = whole] {
          strategy_.run([&](ReplicaContext& ctx) { ctx.scale_loss(torch::ones({}), a, b); });
        },
        "LS-OPTION", {"scale_loss"});
  }
}

TEST_P(Misuse, ScaleLossNeedsExactlyOneBatch) {
  const auto loss = torch::ones({});
  expect_step_error<UsageError>([&] { strategy_.run([&](ReplicaContext& ctx) { ctx.scale_loss(loss); }); }, "LS-BATCH",
                                {"scale_loss(mean_loss)", "0 Batch"});
  const int64_t whole = 2 * strategy_.num_replicas();
  const auto batch = strategy_.per_replica([&](ReplicaId) {
    return Batch{torch::ones({2, 1}), torch::ones({2}), {}, whole};
  });
  const auto of_two = [&](ReplicaContext& ctx, const Batch&, const Batch&) { ctx.scale_loss(loss); };
  expect_step_error<UsageError>([&] { strategy_.run(std::tuple(batch, batch), of_two); }, "LS-BATCH",
                                {"scale_loss(mean_loss)", "2 Batch"});
}

TEST_P(Misuse, ScaleLossRefusesCountsThatCannotBe) {
  const auto expect_refused = [&](Count part, Count whole, std::initializer_list<std::string_view> values) {
    expect_step_error<UsageError>(
        [&] { strategy_.run([&](ReplicaContext& ctx) { ctx.scale_loss(torch::ones({}), part, whole); }); }, "LS-OPTION",
        values);
  };
  expect_refused(3, 2, {"scale_loss", "part 3", "whole 2"});
  expect_refused(-1, 2, {"part -1", "whole 2"});
  expect_refused(1, 0, {"part 1", "whole 0"});
  expect_refused(std::nan(""), 2, {"part nan", "whole 2"});
  const auto of_two_elements = [](ReplicaContext& ctx) { ctx.scale_loss(torch::ones({}), torch::ones({2}), 2); };
  expect_step_error<UsageError>([&] { strategy_.run(of_two_elements); }, "LS-COUNT", {"2 elements"});
}

TEST_P(Misuse, ArgumentsMustFitTheReplicas) {
  const PerReplica<int> wrong(std::vector<int>(static_cast<std::size_t>(GetParam() + 1)));
  const std::string given = std::to_string(GetParam() + 1) + " values";
  const std::string wanted = internal::counted(GetParam(), "replica");
  expect_error<UsageError>([&] { strategy_.run(wrong, [](ReplicaContext&, int) {}); }, "LS-PER-REPLICA-SIZE",
                           {"run()", given, wanted});
}

TEST(EmptyParts, WhoseLossHasNoGraphAreToldWhatToSkip) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 4});
  const auto error = error_from<ReplicaError>([&] {
    strategy.run(strategy.split(torch::ones({2, 3})), [](ReplicaContext& ctx, const Batch& b) {
      const auto weight = torch::ones({3}).set_requires_grad(true);
      torch::Tensor loss = torch::zeros({});
      for (int64_t i = 0; i < b.size(); ++i) loss = loss + b.input[i].dot(weight);
      ctx.scale_loss(loss).backward();
    });
  });
  EXPECT_EQ(error.replica(), ReplicaId(2));
  EXPECT_NE(std::string_view(error.what()).find("skip backward() where b.size() == 0"), std::string_view::npos)
      << error.what();
}

INSTANTIATE_TEST_SUITE_P(Replicas, Misuse, ::testing::Values(1, 3));

}  // namespace
}  // namespace lockstep
