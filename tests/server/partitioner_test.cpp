// How variables are cut and placed: TensorFlow's numbers, and placement.
#include "lockstep/server/partitioner.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/server/shard_placement.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using testing::expect_error;

struct Case {
  std::string name;
  Partitioner partitioner;
  std::vector<int64_t> shape;
  c10::ScalarType dtype;
  int64_t shards;
};

TEST(Partitioners, GiveTensorFlowsNumbers) {
  // The first six are the documented ones of tf.distribute.experimental.partitioners.
  const std::vector<Case> cases{
      {"fixed(2)", fixed_shards_partitioner(2), {10, 3}, c10::kFloat, 2},
      {"min(4, 2)", min_size_partitioner(4, 2), {6, 1}, c10::kFloat, 2},
      {"min(4, 10)", min_size_partitioner(4, 10), {6, 1}, c10::kFloat, 6},
      {"max(4)", max_size_partitioner(4), {6, 1}, c10::kFloat, 6},
      {"max(4, 2)", max_size_partitioner(4, 2), {6, 1}, c10::kFloat, 2},
      {"max(1024)", max_size_partitioner(1024), {6, 1}, c10::kFloat, 1},
      // No more shards than elements of the axis.
      {"fixed(7)", fixed_shards_partitioner(7), {3, 100}, c10::kFloat, 3},
      {"max of a row that is too large", max_size_partitioner(8), {5, 100}, c10::kFloat, 5},
      // A part that is begun makes a shard of min_size, and a row that does not fit one more of max_size.
      {"min, 1,001 floats by 1,000 bytes", min_size_partitioner(1000, 100), {1001}, c10::kFloat, 5},
      {"min, 1,000 floats by 1,000 bytes", min_size_partitioner(1000, 100), {1000}, c10::kFloat, 4},
      {"max, 7 rows by 3", max_size_partitioner(3 * 40), {7, 10}, c10::kFloat, 3},
      {"max, 7 rows by 3.9", max_size_partitioner(3 * 40 + 39), {7, 10}, c10::kFloat, 3},
      // The dtype counts.
      {"min of double", min_size_partitioner(1000, 100), {1000}, c10::kDouble, 8},
      {"max of bfloat16", max_size_partitioner(20), {7, 10}, c10::kBFloat16, 7},
      // TensorFlow's defaults: 256 KiB, and with max_shards = 1 nothing is cut.
      {"min()", min_size_partitioner(), {1 << 20}, c10::kFloat, 16},
      {"min(256 KiB, 1)", min_size_partitioner(256 << 10, 1), {1 << 20}, c10::kFloat, 1},
      // Axes of no elements.
      {"fixed of none", fixed_shards_partitioner(4), {0, 3}, c10::kFloat, 1},
      {"min of none", min_size_partitioner(4), {0, 3}, c10::kFloat, 1},
      {"max of none", max_size_partitioner(4), {5, 0}, c10::kFloat, 1},
  };
  for (const Case& one : cases) EXPECT_EQ(one.partitioner(one.shape, one.dtype), one.shards) << one.name;
}

TEST(Partitioners, RefuseNumbersBelowOne) {
  expect_error<UsageError>([] { fixed_shards_partitioner(0); }, "LS-OPTION",
                           {"fixed_shards_partitioner", "shards = 0"});
  expect_error<UsageError>([] { min_size_partitioner(0); }, "LS-OPTION", {"min_size_partitioner", "bytes = 0"});
  expect_error<UsageError>([] { min_size_partitioner(1, 0); }, "LS-OPTION", {"max_shards = 0"});
  expect_error<UsageError>([] { max_size_partitioner(-1); }, "LS-OPTION", {"max_size_partitioner", "bytes = -1"});
  expect_error<UsageError>([] { max_size_partitioner(1, -2); }, "LS-OPTION", {"max_shards = -2"});
}

TEST(ShardSizes, DifferByOneAndTheFirstAreTheLarger) {
  EXPECT_EQ(shard_sizes(10, 4), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(shard_sizes(10, 3), (std::vector<int64_t>{4, 3, 3}));
  EXPECT_EQ(shard_sizes(4, 4), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_EQ(shard_sizes(0, 1), (std::vector<int64_t>{0}));
}

using Placed = std::vector<std::vector<Shard>>;

TEST(Placement, DealsShardsOfAllVariablesInTurn) {
  const std::vector<PlacedVariable> variables{{"w", {5, 2}}, {"scalar", {}}, {"b", {2}}};
  const Partitioner cut = [](c10::IntArrayRef shape, c10::ScalarType) { return shape.size() == 2 ? 2 : 9; };
  EXPECT_EQ(place_shards(variables, 3, cut, ServerPlacement::kInTurn),
            (Placed{{{0, 3, 0}, {3, 2, 1}}, {{0, 1, 2}}, {{0, 1, 0}, {1, 1, 1}}}));
}

TEST(Placement, GivesByBytesToTheServerThatHasTheFewest) {
  const std::vector<PlacedVariable> variables{
      {"large", {100}}, {"a", {30}}, {"b", {30}}, {"double", {30}, c10::kDouble}, {"last", {1}}};
  // 400 bytes on 0; then 120 and 240 on 1, of which double makes 480; the last goes to 0.
  EXPECT_EQ(place_shards(variables, 2, nullptr, ServerPlacement::kByBytes),
            (Placed{{{0, 100, 0}}, {{0, 30, 1}}, {{0, 30, 1}}, {{0, 30, 1}}, {{0, 1, 0}}}));
}

TEST(Placement, OfAVariableDependsOnThoseBeforeItAlone) {
  std::vector<PlacedVariable> variables;
  for (int64_t k = 0; k < 20; ++k) variables.push_back({"v", {1 + k * 37 % 11, 1 + k % 3}});
  for (const ServerPlacement placement : {ServerPlacement::kInTurn, ServerPlacement::kByBytes}) {
    const Placed all = place_shards(variables, 3, max_size_partitioner(16), placement);
    for (std::size_t count = 0; count <= variables.size(); ++count) {
      EXPECT_EQ(place_shards(std::span(variables).first(count), 3, max_size_partitioner(16), placement),
                Placed(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)));
    }
  }
}

TEST(Placement, NamesTheVariableThatAPartitionerCutsIntoNothing) {
  const std::vector<PlacedVariable> variables{{"kept", {}}, {"table.weight", {4, 4}}};
  const Partitioner wrong = [](c10::IntArrayRef, c10::ScalarType) { return 0; };
  expect_error<UsageError>([&] { place_shards(variables, 2, wrong, ServerPlacement::kInTurn); }, "LS-OPTION",
                           {"0 shards", "table.weight"});
}

}  // namespace
}  // namespace lockstep::internal
