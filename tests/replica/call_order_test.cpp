#include "lockstep/replica/call_order.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <random>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep::internal {
namespace {

namespace testing = lockstep::testing;
using testing::lanes;

/// One letter for each place, one word for each replica.
std::optional<SwappedCalls> swapped(std::initializer_list<std::string> words) {
  std::vector<std::vector<std::string>> places;
  for (const std::string& word : words) {
    places.emplace_back();
    for (const char letter : word) places.back().emplace_back(1, letter);
  }
  return swapped_calls(places);
}

TEST(SwappedCallsOf, ReplicasThatMakeTheSameCallsInAnotherOrderAreFound) {
  const auto two = swapped({"ab", "ba"});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->one, 0u);
  EXPECT_EQ(two->other, 1u);
  EXPECT_EQ(two->calls, (std::vector<std::size_t>{0, 1}));
  EXPECT_TRUE(swapped({"abc", "bca"})) << "no two of them face each other";
  EXPECT_TRUE(swapped({"abcd", "badc"}));
  EXPECT_TRUE(swapped({"lllab", "lllba"})) << "a loop beside them";
  const auto apart = swapped({"axxb", "axxb", "cxxd", "bxxa"});
  ASSERT_TRUE(apart);
  EXPECT_EQ(apart->one, 0u);
  EXPECT_EQ(apart->other, 3u);
  EXPECT_EQ(apart->calls, (std::vector<std::size_t>{0, 3}));
  const auto of_later_ones = swapped({"cd", "ab", "ba"});
  ASSERT_TRUE(of_later_ones);
  EXPECT_EQ(of_later_ones->one, 1u);
  EXPECT_EQ(of_later_ones->other, 2u);
}

TEST(SwappedCallsOf, EqualCallsFromOtherBranchesAreNone) {
  EXPECT_FALSE(swapped({""}));
  EXPECT_FALSE(swapped({"ab", "ab", "ab"}));
  EXPECT_FALSE(swapped({"a", "b"}));
  EXPECT_FALSE(swapped({"ac", "bc"}));
  EXPECT_FALSE(swapped({"ab", "cd"}));
  EXPECT_FALSE(swapped({"ab", "bc"}));
  EXPECT_FALSE(swapped({"abab", "baba"})) << "a loop whose branches replicas take in turn";
  EXPECT_FALSE(swapped({"aab", "aba"}));
  EXPECT_FALSE(swapped({"aabc", "bcaa"})) << "b and c alone are not swapped, and a comes twice";
}

// Each replica takes the branch that its data asks for.
TEST(SwappedCallsOf, ALoopOfMoreThanTwoRoundsWithTwoBranchesHasNone) {
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    const std::size_t rounds = 3 + random() % 6;
    std::vector<std::vector<std::string>> places(2 + random() % 3);
    for (auto& of_replica : places) {
      for (std::size_t k = 0; k < rounds; ++k) of_replica.emplace_back(random() % 2 == 0 ? "a" : "b");
    }
    EXPECT_FALSE(swapped_calls(places));
  }
}

constexpr std::source_location kA = std::source_location::current();
constexpr std::source_location kB = std::source_location::current();

/// Steps of four replicas on two lanes.
class CallsOfAStep : public ::testing::Test {
 protected:
  using Step = std::function<void(ReplicaContext&)>;
  void expect_swapped(const Step& step, const testing::Where& where = testing::Where::current()) {
    const std::string one = "at " + text_of(kA);
    const std::string other = "at " + text_of(kB);
    testing::expect_step_error<UsageError>([&] { strategy_.run(step); }, "LS-MEETING-ORDER",
                                           {"replica 0 made", "replica 2 made", one, other}, where);
  }
  static bool is_other(const ReplicaContext& ctx) { return ctx.replica_id() == 2; }
  /// A call from either place.
  void call(const ReplicaContext& ctx, bool from_a) const {
    ctx.all_reduce(Reduction::kSum, torch::ones({8}), from_a ? kA : kB);
  }

  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 4}};
};

TEST_F(CallsOfAStep, ThatOneReplicaSwapsAreNamedWithTheirPlacesBeforeTheUpdate) {
  const Variable weight = strategy_.make_variable(torch::ones({8}), {.name = "w"});
  const Optimizer optimizer = strategy_.make_optimizer({weight}, torch::optim::SGDOptions(0.5));
  const auto step = [&](bool swaps) {
    return [&, swaps](ReplicaContext& ctx) {
      call(ctx, !(swaps && is_other(ctx)));
      call(ctx, swaps && is_other(ctx));
      weight.value(ctx).sum().backward();
      optimizer.step(ctx);
    };
  };
  strategy_.run(step(false));
  const torch::Tensor before = weight.read().clone();
  const std::string a = "all_reduce at " + text_of(kA);
  const std::string b = "all_reduce at " + text_of(kB);
  testing::expect_step_error<UsageError>(
      [&] { strategy_.run(step(true)); }, "LS-MEETING-ORDER",
      {"replica 0 made " + a + ", then " + b, "replica 2 made " + b + ", then " + a});
  EXPECT_TRUE(weight.read().equal(before));
  strategy_.run(step(false));  // all go on
  EXPECT_FALSE(weight.read().equal(before));
}

TEST_F(CallsOfAStep, ThatAreSwappedAfterTheLastCallWithANameAreNamedAtTheEnd) {
  const Variable sum =
      strategy_.make_variable(torch::zeros({8}), {.name = "sum", .aggregation = VariableAggregation::kSum});
  const Step step = [&](ReplicaContext& ctx) {
    sum.assign_add(ctx, torch::ones({8}));
    call(ctx, !is_other(ctx));
    call(ctx, is_other(ctx));
  };
  expect_swapped(step);
  EXPECT_TRUE(sum.read().equal(torch::zeros({8}))) << "the step is undone";
  EXPECT_EQ(strategy_.step(), 0);
  testing::expect_step_error<UsageError>([&] { strategy_.evaluate(step); }, "LS-MEETING-ORDER", {"replica 2 made"});
}

TEST_F(CallsOfAStep, OfEachKindAreFoundWhereTheyAreSwapped) {
  expect_swapped([&](ReplicaContext& ctx) {
    ctx.all_gather(torch::ones({3}), 0, is_other(ctx) ? kA : kB);
    ctx.all_gather(torch::ones({3}), 0, is_other(ctx) ? kB : kA);
  });
  expect_swapped([&](ReplicaContext& ctx) {
    ctx.broadcast(1, torch::ones({3}), is_other(ctx) ? kA : kB);
    ctx.broadcast(1, torch::ones({3}), is_other(ctx) ? kB : kA);
  });
  expect_swapped([&](ReplicaContext& ctx) {
    const auto sum_of = [&](const torch::Tensor& x, const std::source_location& place) {
      return ctx.all_reduce(Reduction::kMax, x.clone().requires_grad_(), place);
    };
    const torch::Tensor one = sum_of(torch::ones({3}), is_other(ctx) ? kA : kB);
    const torch::Tensor other = sum_of(torch::ones({3}), is_other(ctx) ? kB : kA);
    (one * other).sum().backward();  // which makes calls of its own
  });
}

TEST_F(CallsOfAStep, FromOtherBranchesAreAccepted) {
  strategy_.run([&](ReplicaContext& ctx) { call(ctx, is_other(ctx)); });
  strategy_.run([&](ReplicaContext& ctx) {
    for (int64_t k = 0; k < 5; ++k) call(ctx, (k + ctx.replica_id()) % 2 == 0);
  });
  const Variable sum =
      strategy_.make_variable(torch::zeros({8}), {.name = "sum", .aggregation = VariableAggregation::kSum});
  strategy_.run([&](ReplicaContext& ctx) {
    for (int64_t k = 0; k < 2; ++k) {
      call(ctx, (k + ctx.replica_id()) % 2 == 0);
      sum.assign_add(ctx, torch::ones({8}));  // its name shows that all replicas are in the same round of the loop
    }
  });
  EXPECT_EQ(strategy_.step(), 3);
}

TEST_F(CallsOfAStep, WithoutAKnownPlaceAreAccepted) {
  strategy_.run([&](ReplicaContext& ctx) {
    ctx.all_reduce(Reduction::kSum, torch::ones({8}), is_other(ctx) ? kA : std::source_location());
    ctx.all_reduce(Reduction::kSum, torch::ones({8}), is_other(ctx) ? std::source_location() : kA);
  });
  EXPECT_EQ(strategy_.step(), 1);
}

TEST_F(CallsOfAStep, OfWhichThereAreMoreThanAreComparedAreNotJudged) {
  const std::source_location one = std::source_location::current();
  const std::source_location two = std::source_location::current();
  strategy_.run([&](ReplicaContext& ctx) {
    for (int i = 0; i < 4094; ++i) ctx.all_reduce(Reduction::kSum, torch::ones({1}), kA);
    for (int i = 0; i < 4; ++i) {  // a loop, of which the first two rounds alone would look like swapped calls
      ctx.all_reduce(Reduction::kSum, torch::ones({1}), is_other(ctx) == (i % 2 == 0) ? one : two);
    }
  });
  EXPECT_EQ(strategy_.step(), 1);
}

TEST_F(CallsOfAStep, ThatDifferAreNamedWithTheirPlaces) {
  testing::expect_step_error<UsageError>(
      [&] {
        strategy_.run([&](ReplicaContext& ctx) {
          call(ctx, true);
          if (is_other(ctx)) ctx.broadcast(1, torch::ones({8}), kB);
          if (!is_other(ctx)) call(ctx, true);
        });
      },
      "LS-MEETING-ORDER",
      {"replicas 0 to 1 came to all_reduce(sum, Float [8]) at " + text_of(kA) + " as its meeting 2",
       "replica 2 came to broadcast(from replica 1) at " + text_of(kB) + " as its meeting 2"});
}

}  // namespace
}  // namespace lockstep::internal
