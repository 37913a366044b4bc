// Cuts of tables, which are read while the table changes, and rows that come from files.
#include "lockstep/server/table/table_cut.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>

#include <numeric>
#include <thread>

#include "tests/server/table/tables.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using testing::add_rows;
using testing::drawn_gradients;
using testing::expect_error;
using testing::row_rule;
using testing::rows_of;
using testing::SpreadTable;
using testing::WholeRow;
using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;

const EmbeddingOptions kOptions{.name = "t", .dim = 5, .admit_after = 2};

void train(SpreadTable& table, int64_t first_step, int64_t steps) {
  std::mt19937_64 random(static_cast<uint64_t>(first_step));
  for (int64_t step = first_step; step < first_step + steps; ++step) {
    table.push(drawn_gradients(random, 1500, 200, 5), 0.05, step);
  }
}

/// Counts of rows that are not admitted yet, by row: when, and how many pushes.
std::map<int64_t, std::pair<int64_t, int64_t>> counts_of(const SpreadTable& table) {
  std::map<int64_t, std::pair<int64_t, int64_t>> all;
  for (const auto& part : table.parts) {
    const SavedCounts counts = part->cut().counts(0, part->counted());
    for (int64_t k = 0; k < counts.ids.numel(); ++k) {
      all[counts.ids[k].item<int64_t>()] = {counts.positions[k].item<int64_t>(), counts.pushes[k].item<int64_t>()};
    }
  }
  return all;
}

TEST(ACut, StaysAsItWasWhileTheTableGoesOn) {
  SpreadTable table(kOptions, row_rule(AdamOptions(0.05)));
  train(table, 1, 10);
  const auto before = rows_of(table);
  TableCut cut = table.parts[0]->cut();
  std::map<int64_t, WholeRow> seen;
  std::thread reader([&] { add_rows(cut, seen, 7); });
  train(table, 11, 30);
  table.parts[0]->evict(30, 41);
  train(table, 42, 10);
  reader.join();
  EXPECT_EQ(seen, before);
  EXPECT_NE(rows_of(table), before);
}

TEST(ACut, HoldsMemoryUntilItEnds) {
  SpreadTable table(kOptions, row_rule(AdagradOptions(0.05)));
  train(table, 1, 20);
  const int64_t bytes = table.parts[0]->bytes();
  {
    const TableCut cut = table.parts[0]->cut();
    train(table, 1, 1);
    EXPECT_GT(table.parts[0]->bytes(), bytes);
  }
  // All rows have been admitted before: no others came.
  EXPECT_LE(table.parts[0]->bytes(), bytes + 4096);
}

TEST(ADifference, HasTheRowsThatChangedAfterAPosition) {
  SpreadTable table({.name = "t", .dim = 5}, row_rule(AdagradOptions(0.05)));
  train(table, 1, 10);
  SpreadTable copy({.name = "t", .dim = 5}, row_rule(AdagradOptions(0.05)));
  copy.parts[0]->load(table.parts[0]->cut().rows(0, table.size()));
  train(table, 11, 1);
  const SavedRows difference = table.parts[0]->cut().rows(0, table.size(), 10);
  EXPECT_GT(difference.ids.numel(), 100);
  EXPECT_LE(difference.ids.numel(), 200);
  copy.parts[0]->load(difference);
  EXPECT_EQ(rows_of(copy), rows_of(table));
}

TEST(ARestore, OnAnotherNumberOfServersGoesOnWithTheSameBits) {
  SpreadTable straight(kOptions, row_rule(AdamOptions(0.05)), 3);
  train(straight, 1, 20);
  for (const int64_t servers : {1, 2, 5}) {
    SpreadTable restored(kOptions, row_rule(AdamOptions(0.05)), servers);
    for (const auto& from : straight.parts) {
      const TableCut cut = from->cut();
      for (int64_t first = 0; first < cut.size(); first += 64) {
        for (const auto& to : restored.parts) to->load(cut.rows(first, 64));
      }
      for (const auto& to : restored.parts) to->load(cut.counts(0, cut.counted()));
    }
    EXPECT_EQ(rows_of(restored), rows_of(straight));
    EXPECT_EQ(counts_of(restored), counts_of(straight));
    SpreadTable went_on(kOptions, row_rule(AdamOptions(0.05)), 3);
    train(went_on, 1, 20);
    train(went_on, 21, 5);
    train(restored, 21, 5);
    EXPECT_EQ(rows_of(restored), rows_of(went_on));
    EXPECT_EQ(counts_of(restored), counts_of(went_on));
  }
}

TEST(ARestore, OfALaterFileReplacesRowsAndCounts) {
  SpreadTable table(kOptions, row_rule(AdagradOptions(0.05)));
  table.push({{1, 2}, torch::ones({2, 5})}, 1, 1);
  const SavedCounts counted = table.parts[0]->cut().counts(0, 2);
  table.push({{1}, torch::ones({1, 5})}, 1, 2);
  const SavedRows admitted = table.parts[0]->cut().rows(0, 1);
  SpreadTable copy(kOptions, row_rule(AdagradOptions(0.05)));
  copy.parts[0]->load(counted);
  copy.parts[0]->load(admitted);
  EXPECT_EQ(copy.size(), 1);
  EXPECT_EQ(copy.parts[0]->counted(), 1);
  // Row 1 was forgotten later, and counted again.
  copy.parts[0]->load(counted);
  EXPECT_EQ(copy.size(), 0);
  EXPECT_EQ(copy.parts[0]->counted(), 2);
}

TEST(RowsOfAFile, WithoutTheirSlotsAreRefusedAndNothingIsLoaded) {
  SpreadTable table(kOptions, row_rule(AdamOptions(0.05)));
  train(table, 1, 10);
  const SavedRows whole = table.parts[0]->cut().rows(0, 10);
  SpreadTable other(kOptions, row_rule(AdamOptions(0.05)));
  const auto refused = [&](const SavedRows& rows, std::initializer_list<std::string_view> values) {
    expect_error<UsageError>([&] { other.parts[0]->load(rows); }, "LS-STATE-MISFIT", values);
    EXPECT_EQ(other.size(), 0);
  };
  SavedRows rows = whole;
  rows.slots.erase("exp_avg_sq");
  refused(rows, {"table 't'", "exp_avg_sq"});
  rows = whole;
  rows.slots["sum"] = rows.weights;
  refused(rows, {"sum"});
  rows = whole;
  rows.slots["exp_avg"] = rows.weights.slice(0, 0, 9);
  refused(rows, {"exp_avg", "(9, 5)"});
  rows = whole;
  rows.updates = torch::Tensor();
  refused(rows, {"counts of updates"});
  rows = whole;
  rows.weights = rows.weights.to(torch::kDouble);
  refused(rows, {"weights", "Double"});
  rows = whole;
  rows.ids = rows.ids.to(torch::kInt);
  refused(rows, {"ids", "Int"});
  rows = whole;
  rows.positions = rows.positions.slice(0, 0, 3);
  refused(rows, {"positions"});
  other.parts[0]->load(whole);
  EXPECT_EQ(other.size(), 10);
}

TEST(RowsOfAFile, OutOfRangeAreRefused) {
  SpreadTable table({.name = "t", .dim = 1}, row_rule(AdagradOptions(0.05)));
  table.push({{3, 70}, torch::ones({2, 1})}, 1, 1);
  const SavedRows rows = table.parts[0]->cut().rows(0, 2);
  SpreadTable smaller({.name = "t", .rows = 70, .dim = 1}, row_rule(AdagradOptions(0.05)));
  expect_error<UsageError>([&] { smaller.parts[0]->load(rows); }, "LS-ROW-RANGE", {"row 70"});
  EXPECT_EQ(smaller.size(), 0);
}

TEST(ATableWithoutAnOptimizer, TakesWeightsAlone) {
  SpreadTable table({.name = "t", .dim = 1, .initial = 0}, row_rule(AdagradOptions(0.05)));
  table.push({{3}, torch::ones({1, 1})}, 1, 1);
  SavedRows rows = table.parts[0]->cut().rows(0, 1);
  rows.slots.clear();
  SpreadTable evaluated({.name = "t", .dim = 1, .initial = 0}, nullptr);
  evaluated.parts[0]->load(rows);
  EXPECT_EQ(evaluated.weights({3}).item<float>(), -1);
}

}  // namespace
}  // namespace lockstep::internal
