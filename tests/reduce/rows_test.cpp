// Sparse gradients as rows, and which replicas' rows make each row of a sum.
#include "lockstep/reduce/rows.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>

namespace lockstep::internal {
namespace {

using torch::Tensor;

Tensor sparse(const std::vector<int64_t>& ids, const Tensor& values, std::vector<int64_t> sizes) {
  const Tensor indices = torch::tensor(ids, torch::kLong).view({1, -1});
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes);
}

TEST(CoalescedRows, AddEqualIdsInTheOrderInWhichTheyStand) {
  // In float32 (big + 1) - big is 0 and (big - big) + 1 is 1.
  const float big = 1e8f;
  const Tensor values = torch::tensor({big, 5.f, 1.f, -big, -big, 7.f, 1.f}).view({7, 1});
  const Rows rows = coalesced(sparse({3, 1, 3, 3, 0, 0, 2}, values, {4, 1}));
  EXPECT_EQ(rows.ids, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(torch::equal(rows.values.view({4}), torch::tensor({-big + 7.f, 5.f, 1.f, (big + 1.f) - big})));
}

TEST(CoalescedRows, KeepHalfPrecisionInFloatUntilItIsStored) {
  const Tensor ones = torch::ones({300, 2}, torch::kBFloat16);  // bfloat16 counts to 256 and no further
  const Rows rows = coalesced(sparse(std::vector<int64_t>(300, 1), ones, {3, 2}));
  EXPECT_EQ(rows.values.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(rows.values, torch::full({1, 2}, 300.f)));
}

TEST(CoalescedRows, AreAMatrixWhateverTheRowsShape) {
  const Rows rows = coalesced(sparse({2, 0}, torch::arange(12).to(torch::kDouble).view({2, 2, 3}), {3, 2, 3}));
  EXPECT_EQ(rows.ids, (std::vector<int64_t>{0, 2}));
  EXPECT_TRUE(torch::equal(rows.values[0], torch::arange(6, 12).to(torch::kDouble)));
}

TEST(CoalescedRows, MayBeNone) {
  const Rows rows = coalesced(sparse({}, torch::zeros({0, 2}), {3, 2}));
  EXPECT_EQ(rows.count(), 0);
}

TEST(CoalescedRows, AreOfTheMatrix) {
  EXPECT_THROW(coalesced(sparse({3}, torch::zeros({1, 2}), {3, 2})), std::out_of_range);
  EXPECT_THROW(coalesced(sparse({-1}, torch::zeros({1, 2}), {3, 2})), std::out_of_range);
}

TEST(MergedRowsOf, ReplicasHaveEachIdOnceWithItsReplicasInOrder) {
  const std::vector<int64_t> a{1, 5};
  const std::vector<int64_t> none;
  const std::vector<int64_t> b{0, 5, 9};
  const std::vector<std::span<const int64_t>> all{a, none, b};
  const MergedRows merged = internal::merged(all);
  EXPECT_EQ(merged.ids, (std::vector<int64_t>{0, 1, 5, 9}));
  EXPECT_EQ(merged.first, (std::vector<std::size_t>{0, 1, 2, 4, 5}));
  ASSERT_EQ(merged.parts.size(), 5u);
  EXPECT_EQ(merged.parts[2].replica, 0);
  EXPECT_EQ(merged.parts[2].index, 1);
  EXPECT_EQ(merged.parts[3].replica, 2);
  EXPECT_EQ(merged.parts[3].index, 1);
}

}  // namespace
}  // namespace lockstep::internal
