// Sums that leave during backward where workers have several replicas each.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/exchange/bucket_programs.h"

namespace lockstep {
namespace {

using testing::WorkersCase;
using testing::buckets::expect_bits_of_one_worker;
using testing::buckets::expect_during_backward;
using testing::buckets::kAll;
using testing::buckets::Kept;
using testing::buckets::Program;
using testing::buckets::Steps;
using testing::buckets::with;

/// Several replicas on each worker, whose blocks are one subtree each, on one lane and on several.
const std::vector<WorkersCase> kSeveralReplicas{{2, 4, 1}, {2, 4, 2}, {2, 3, 1}, {4, 8, 2}, {2, 8, 4}, {2, 8, 3}};

// A replica that changes its gradients after backward may do so while another one adds them up. What has left is then
// compared with what should have, and travels once more. The thread sanitizer reports it, and rightly so.
#ifdef __SANITIZE_THREAD__
constexpr bool kMayRace = false;
#else
constexpr bool kMayRace = true;
#endif

TEST(GradientBuckets, OfSeveralReplicasLeaveWhenTheLastOneHasThem) {
  for (const WorkersCase& one : kSeveralReplicas) {
    const auto plain = with(5, [](Program&, ReplicaContext&, int) {});
    std::ostringstream what;
    what << one;
    expect_during_backward(expect_bits_of_one_worker(one, plain, what.str()), kAll);
    if (!kMayRace) continue;
    const auto changed = with(7, [](Program& program, ReplicaContext& ctx, int step) {
      const auto net = program.net(ctx);
      if (step == 3 && ctx.replica_id() == 1) net->second->weight.grad().data().mul_(0.5);
      if (step == 4 && ctx.replica_id() == 0) net->first->bias.mutable_grad() = torch::Tensor();
      if (step == 5 && ctx.replica_id().value() == 2) program.backward(ctx);
    });
    expect_bits_of_one_worker(one, changed, "changed, " + what.str());
  }
}

TEST(GradientBuckets, ThatDifferInOneElementTravelOnceMore) {
  if (!kMayRace) GTEST_SKIP() << "gradients are changed while they are read, which the thread sanitizer reports";
  // Lanes compare a part of each gradient: one element in the first, in a middle and in the last block.
  const auto changed = with(9, [](Program& program, ReplicaContext& ctx, int step) {
    const auto gradient = program.net(ctx)->second->weight.grad().data().view({-1});
    const int64_t element = step == 3 ? 0 : step == 5 ? gradient.numel() / 2 + 1 : gradient.numel() - 1;
    if ((step == 3 || step == 5 || step == 7) && ctx.replica_id() == 1) gradient.select(0, element).fill_(0.5);
  });
  for (const WorkersCase& one : kSeveralReplicas) {
    std::ostringstream what;
    what << "one element changed, " << one;
    expect_bits_of_one_worker(one, changed, what.str());
  }
}

TEST(GradientBuckets, AreNoOwnersOfGradientsWhenTheStepComes) {
  // A gradient whose memory has another owner is copied in the step.
  const auto looked = with(5, [](Program& program, ReplicaContext& ctx, int) {
    ctx.all_reduce(Reduction::kSum, torch::ones({1}));  // now all replicas have been through their backward
    for (const auto& parameter : program.net(ctx)->parameters()) {
      EXPECT_EQ(parameter.grad().storage().use_count(), 1u);
    }
  });
  for (const WorkersCase& one : {WorkersCase{2, 2, 1}, WorkersCase{2, 4, 2}}) {
    expect_during_backward(expect_bits_of_one_worker(one, looked, "looked at"), kAll);
  }
}

TEST(GradientBuckets, OfSeveralSubtreesWaitForTheStep) {
  const auto plain = with(4, [](Program&, ReplicaContext&, int) {});
  expect_during_backward(expect_bits_of_one_worker({3, 8, 2}, plain, "three workers"), 0);
  expect_during_backward(expect_bits_of_one_worker({2, 7, 2}, plain, "seven replicas"), kAll);
  expect_during_backward(expect_bits_of_one_worker({2, 6, 2}, plain, "six replicas"), 0);
}

TEST(GradientBuckets, OfReplicasThatThrowOrGiveUpMemoryDoNotMatter) {
  if (!kMayRace) GTEST_SKIP() << "gradients are changed while they are read, which the thread sanitizer reports";
  const Steps rough = [](Strategy& strategy, Kept& kept) {
    Program& program = kept.make(strategy);
    for (int step = 0; step < 10; ++step) {
      const auto body = [&](ReplicaContext& ctx) {
        const bool is_odd = ctx.replica_id().value() % 2 == 1;
        program.backward(ctx);
        if (step == 3 && is_odd) throw std::runtime_error("the step's own error");
        if (step == 5 && is_odd) {  // while others may add it up
          for (auto& parameter : program.net(ctx)->parameters()) parameter.mutable_grad() = torch::Tensor();
          program.backward(ctx);
        }
        if (step == 7 && ctx.replica_id() == 0) {
          program.net(ctx)->second->weight.mutable_grad() = torch::ones({200, 3000});
        }
        program.optimizer.step(ctx, {.gradients_changed_on_purpose = true});
      };
      if (step == 3) {
        EXPECT_THROW(strategy.run(body), ReplicaError);
        strategy.run([&](ReplicaContext& ctx) { program.net(ctx)->zero_grad(); });
      } else {
        strategy.run(body);
      }
    }
  };
  for (const WorkersCase& one : kSeveralReplicas) expect_bits_of_one_worker(one, rough, "rough");
}

}  // namespace
}  // namespace lockstep
