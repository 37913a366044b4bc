// Breaks each rule about which call is allowed where.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <thread>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using testing::message_from;
using testing::nested_message_from;

class Misuse : public ::testing::TestWithParam<int64_t> {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = GetParam()}};
  PerReplica<torch::Tensor> ones_ = strategy_.per_replica([](ReplicaId) { return torch::ones({2}); });
  template <class Fn>
  std::string inside(Fn fn) {
    return nested_message_from<UsageError>([&] { strategy_.run([&](ReplicaContext&) { fn(); }); });
  }
};

TEST_P(Misuse, ACrossReplicaCallInsideAStepNamesTheRightOne) {
  const auto variable = strategy_.make_variable(torch::ones({2}), {.name = "v"});
  EXPECT_NE(inside([&] { strategy_.reduce(Reduction::kSum, ones_); }).find("ctx.all_reduce()"), std::string::npos);
  EXPECT_NE(inside([&] { strategy_.gather(ones_); }).find("ctx.all_gather()"), std::string::npos);
  EXPECT_NE(inside([&] { strategy_.broadcast(0, torch::ones({2})); }).find("ctx.broadcast()"), std::string::npos);
  EXPECT_NE(inside([&] { variable.read(); }).find("value(ctx)"), std::string::npos);
  EXPECT_NE(inside([&] { variable.assign(torch::ones({2})); }).find("assign(ctx, value)"), std::string::npos);
  EXPECT_NE(inside([&] { variable.components(); }).find("value(ctx)"), std::string::npos);
  EXPECT_NE(inside([&] { strategy_.make_variable(torch::ones({2})); }).find("ctx.make_variable("), std::string::npos);
  EXPECT_NE(inside([&] { strategy_.make_module([] { return torch::nn::Linear(2, 2); }); }).find("before run()"),
            std::string::npos);
  EXPECT_NE(inside([&] { strategy_.variables(); }).find("inside a step"), std::string::npos);
  EXPECT_NE(inside([&] { strategy_.on_chief([] { return 1; }); }).find("inside a step"), std::string::npos);
}

TEST_P(Misuse, ANestedRunIsRefused) {
  EXPECT_NE(inside([&] { strategy_.run([](ReplicaContext&) {}); }).find("runs do not nest"), std::string::npos);
  EXPECT_NE(inside([&] { strategy_.evaluate([](ReplicaContext&) {}); }).find("runs do not nest"), std::string::npos);
  OneDeviceStrategy other;
  EXPECT_NE(inside([&] { other.run([](ReplicaContext&) {}); }).find("runs do not nest"), std::string::npos);
}

TEST_P(Misuse, ARunInsideAMergeFunctionIsRefused) {
  const auto text = nested_message_from<UsageError>([&] {
    strategy_.run(
        [&](ReplicaContext& ctx) { ctx.merge_call([](Strategy& strategy) { strategy.run([](ReplicaContext&) {}); }); });
  });
  EXPECT_NE(text.find("merge_call"), std::string::npos) << text;
}

TEST_P(Misuse, AContextIsRefusedAfterItsStep) {
  ReplicaContext* kept = nullptr;
  strategy_.run([&](ReplicaContext& ctx) { kept = &ctx; });
  EXPECT_NE(message_from<UsageError>([&] { kept->replica_id(); }).find("outside of its step"), std::string::npos);
  message_from<UsageError>([&] { kept->all_reduce(Reduction::kSum, torch::ones({1})); });
  message_from<UsageError>([&] { kept->random(); });
  message_from<UsageError>([&] { kept->step(); });
  message_from<UsageError>([&] { kept->device(); });
  message_from<UsageError>([&] { kept->num_replicas(); });
  message_from<UsageError>([&] { kept->scale_loss(torch::ones({}), 1, 2); });
  message_from<UsageError>([&] { kept->merge_call([](Strategy&) {}); });
}

TEST_P(Misuse, AContextIsRefusedOnAnotherThread) {
  const auto text = nested_message_from<UsageError>([&] {
    strategy_.run([&](ReplicaContext& ctx) { std::async(std::launch::async, [&] { return ctx.step(); }).get(); });
  });
  EXPECT_NE(text.find("another thread"), std::string::npos) << text;
}

TEST_P(Misuse, AContextIsRefusedInAMergeFunction) {
  const auto text = nested_message_from<UsageError>([&] {
    strategy_.run([&](ReplicaContext& ctx) {
      ctx.merge_call([&](Strategy&) { ctx.all_reduce(Reduction::kSum, torch::ones({1})); });
    });
  });
  EXPECT_NE(text.find("merge function"), std::string::npos) << text;
}

TEST_P(Misuse, AnotherReplicasContextIsRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "one replica has no other's context";
  std::vector<ReplicaContext*> contexts(GetParam());
  strategy_.run([&](ReplicaContext& ctx) { contexts[ctx.replica_id()] = &ctx; });
  const auto text = nested_message_from<UsageError>(
      [&] { strategy_.run([&](ReplicaContext& ctx) { contexts[(ctx.replica_id() + 1) % GetParam()]->step(); }); });
  EXPECT_NE(text.find("inside the step of replica 0"), std::string::npos) << text;
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
  EXPECT_NE(message_from<UsageError>([&] { strategy_.run([](ReplicaContext&) {}); }).find("another thread"),
            std::string::npos);
  EXPECT_NE(message_from<UsageError>([&] { strategy_.reduce(Reduction::kSum, ones_); }).find("another thread"),
            std::string::npos);
  finish.set_value();
  other.join();
  strategy_.run([](ReplicaContext&) {});  // free again
}

TEST_P(Misuse, ScaleLossNeedsExactlyOneBatch) {
  const auto loss = torch::ones({});
  EXPECT_NE(nested_message_from<UsageError>([&] {
              strategy_.run([&](ReplicaContext& ctx) { ctx.scale_loss(loss); });
            }).find("0 Batch"),
            std::string::npos);
  const int64_t whole = 2 * strategy_.num_replicas();
  const auto batch = strategy_.per_replica([&](ReplicaId) {
    return Batch{torch::ones({2, 1}), torch::ones({2}), {}, whole};
  });
  EXPECT_NE(nested_message_from<UsageError>([&] {
              strategy_.run(std::tuple(batch, batch),
                            [&](ReplicaContext& ctx, const Batch&, const Batch&) { ctx.scale_loss(loss); });
            }).find("2 Batch"),
            std::string::npos);
}

TEST_P(Misuse, ScaleLossRefusesCountsThatCannotBe) {
  const auto refused = [&](Count part, Count whole) {
    return nested_message_from<UsageError>(
        [&] { strategy_.run([&](ReplicaContext& ctx) { ctx.scale_loss(torch::ones({}), part, whole); }); });
  };
  refused(3, 2);
  refused(-1, 2);
  refused(1, 0);
  refused(std::nan(""), 2);
  nested_message_from<UsageError>(
      [&] { strategy_.run([&](ReplicaContext& ctx) { ctx.scale_loss(torch::ones({}), torch::ones({2}), 2); }); });
}

TEST_P(Misuse, ArgumentsMustFitTheReplicas) {
  const PerReplica<int> wrong(std::vector<int>(static_cast<std::size_t>(GetParam() + 1)));
  message_from<UsageError>([&] { strategy_.run(wrong, [](ReplicaContext&, int) {}); });
}

INSTANTIATE_TEST_SUITE_P(Replicas, Misuse, ::testing::Values(1, 3));

}  // namespace
}  // namespace lockstep
