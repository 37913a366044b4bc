// Sums that are cut into blocks of replicas, as several workers have them, have the bits of the sum of one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/types.h>

#include <cstring>

#include "lockstep/reduce/addition_order.h"
#include "lockstep/reduce/leaf.h"
#include "lockstep/reduce/loops/tree_sum.h"
#include "lockstep/reduce/reduce_tensors.h"

namespace lockstep::internal {
namespace {

using torch::Tensor;

TEST(MaximalSubtrees, AreTheFewestThatTileABlock) {
  using Trees = std::vector<Subtree>;
  EXPECT_EQ(maximal_subtrees(8, 0, 8), (Trees{{0, 8}}));
  EXPECT_EQ(maximal_subtrees(8, 4, 4), (Trees{{4, 4}}));
  EXPECT_EQ(maximal_subtrees(8, 1, 6), (Trees{{1, 1}, {2, 2}, {4, 2}, {6, 1}}));
  EXPECT_EQ(maximal_subtrees(6, 4, 2), (Trees{{4, 2}}));
  EXPECT_EQ(maximal_subtrees(6, 3, 3), (Trees{{3, 1}, {4, 2}}));
  EXPECT_EQ(maximal_subtrees(7, 4, 3), (Trees{{4, 3}}));
  EXPECT_EQ(maximal_subtrees(1, 0, 1), (Trees{{0, 1}}));
  EXPECT_EQ(maximal_subtrees(5, 2, 0), Trees{});
}

TEST(MaximalSubtrees, TileEveryBlockOfUpTo40ReplicasWithoutOneThatCouldBeMerged) {
  for (int64_t replicas = 1; replicas <= 40; ++replicas) {
    for (int64_t first = 0; first < replicas; ++first) {
      for (int64_t end = first + 1; end <= replicas; ++end) {
        int64_t next = first;
        for (const Subtree& tree : maximal_subtrees(replicas, first, end - first)) {
          ASSERT_EQ(tree.first, next);
          // A subtree by itself is one piece of the tree over all.
          ASSERT_EQ(maximal_subtrees(replicas, tree.first, tree.count).size(), 1u);
          next += tree.count;
        }
        ASSERT_EQ(next, end);
      }
    }
  }
}

/// Numbers whose sum depends on the order: of very different sizes, both signs and zeros of both signs.
std::vector<float> number_row(int64_t replica, std::size_t count) {
  std::vector<float> row;
  auto state = static_cast<uint64_t>(replica + 1) * 0x9e3779b97f4a7c15u;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto mantissa = static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23));
    const int exponent = static_cast<int>(state >> 33 & 31) - 16;
    row.push_back((state >> 28 & 15) == 0 ? -0.0f : std::ldexp(mantissa, exponent));
  }
  return row;
}

class Summing {
 public:
  static constexpr int64_t kCount = 5;
  explicit Summing(int64_t replicas)
      : replicas_(replicas), scratch_(static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock)) {}

  /// The kernel's sum of leaves; empty where all are absent.
  std::vector<float> of(const std::vector<Leaf>& leaves) {
    std::vector<const float*> inputs;
    FactorBlocks made(0);
    for (const Leaf& leaf : leaves) inputs.push_back(leaf.block<float>(0, kCount, made));
    const float* sum =
        tree_sum<float>()(inputs.data(), static_cast<int64_t>(inputs.size()), 0, kCount, scratch_.data());
    return sum ? std::vector<float>(sum, sum + kCount) : std::vector<float>();
  }

  /// What workers that have the blocks between `cuts` hand on, added by whoever has it all.
  std::vector<float> dealt(const std::vector<Leaf>& leaves, const std::vector<int64_t>& cuts) {
    std::vector<std::vector<float>> partial(leaves.size());
    std::vector<Leaf> handed_on(leaves.size());
    for (std::size_t w = 0; w + 1 < cuts.size(); ++w) {
      for (const Subtree& tree : maximal_subtrees(replicas_, cuts[w], cuts[w + 1] - cuts[w])) {
        const auto first = static_cast<std::size_t>(tree.first);
        const auto begin = leaves.begin() + tree.first;
        partial[first] = of(std::vector<Leaf>(begin, begin + tree.count));
        if (!partial[first].empty()) handed_on[first] = Leaf(partial[first].data());
      }
    }
    return of(handed_on);
  }

 private:
  const int64_t replicas_;
  std::vector<float> scratch_;
};

bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(PartialSums, OfEveryThreeBlocksOfUpTo40ReplicasHaveTheBitsOfOne) {
  for (int64_t replicas = 1; replicas <= 40; ++replicas) {
    std::vector<std::vector<float>> rows;
    std::vector<Leaf> leaves;
    for (int64_t r = 0; r < replicas; ++r) rows.push_back(number_row(r, Summing::kCount));
    for (const auto& row : rows) leaves.emplace_back(row.data());
    Summing summing(replicas);
    const std::vector<float> expected = summing.of(leaves);
    for (int64_t a = 0; a <= replicas; ++a) {
      for (int64_t b = a; b <= replicas; ++b) {
        ASSERT_TRUE(same_numbers(summing.dealt(leaves, {0, a, b, replicas}), expected))
            << replicas << " replicas cut at " << a << " and " << b;
      }
    }
  }
}

RC_GTEST_PROP(PartialSums, OfAnyDealingAndAnyAbsentReplicasHaveTheBitsOfOne, ()) {
  const auto replicas = *rc::gen::inRange<int64_t>(1, 41);
  std::vector<std::vector<float>> rows;
  std::vector<Leaf> leaves;
  std::vector<int64_t> cuts{0};
  for (int64_t r = 0; r < replicas; ++r) rows.push_back(number_row(r, Summing::kCount));
  for (int64_t r = 0; r < replicas; ++r) {
    leaves.push_back(*rc::gen::weightedElement<bool>({{3, true}, {1, false}})
                         ? Leaf(rows[static_cast<std::size_t>(r)].data())
                         : Leaf());
    if (r > 0 && *rc::gen::arbitrary<bool>()) cuts.push_back(r);
  }
  cuts.push_back(replicas);
  Summing summing(replicas);
  RC_ASSERT(same_numbers(summing.dealt(leaves, cuts), summing.of(leaves)));
}

// Of tensors too, in every form that a summand has.
RC_GTEST_PROP(PartialSums, OfTensorsOfAnyDtypeHaveTheBitsOfOne, ()) {
  const auto replicas = *rc::gen::inRange<int64_t>(1, 20);
  const auto type = *rc::gen::element(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte,
                                      at::kComplexFloat);
  const auto reduction = *rc::gen::element(Reduction::kSum, Reduction::kMean);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(*rc::gen::arbitrary<uint32_t>());
  std::vector<Tensor> values;
  std::vector<Tensor> handed_on(static_cast<std::size_t>(replicas));
  for (int64_t r = 0; r < replicas; ++r) {
    values.push_back(at::isIntegralType(type, false) ? torch::randint(0, 200, {3}, generator, type)
                                                     : (torch::randn({3}, generator) * 100).to(type));
  }
  int64_t first = 0;
  while (first < replicas) {
    const auto count = *rc::gen::inRange<int64_t>(1, replicas - first + 1);
    for (const Subtree& tree : maximal_subtrees(replicas, first, count)) {
      std::vector<Tensor> summands;
      for (int64_t r = 0; r < tree.count; ++r) summands.push_back(summand_of(reduction, values[tree.first + r]));
      handed_on[static_cast<std::size_t>(tree.first)] = fold_summands(reduction, summands);
    }
    first += count;
  }
  const Tensor result = result_of(reduction, fold_summands(reduction, handed_on), replicas, type);
  const Tensor expected = reduce_tensors(reduction, values);
  RC_ASSERT(result.scalar_type() == expected.scalar_type());
  RC_ASSERT(torch::equal(result, expected));
}

TEST(Leaf, GivesBlocksOfItsMemoryAndNothingWhereItIsAbsent) {
  const std::vector<double> memory{1, 2, 3};
  FactorBlocks made(0);
  EXPECT_EQ(Leaf(memory.data()).block<double>(1, 2, made), memory.data() + 1);
  EXPECT_TRUE(Leaf(memory.data()).present());
  EXPECT_FALSE(Leaf().present());
  EXPECT_EQ(Leaf().block<double>(1, 2, made), nullptr);
}

}  // namespace
}  // namespace lockstep::internal
