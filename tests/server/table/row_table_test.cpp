// Tables of rows: what a look-up gives, what a push changes, and what is kept.
#include "lockstep/server/table/row_table.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "tests/server/table/tables.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using testing::drawn_gradients;
using testing::expect_error;
using testing::Gradients;
using testing::row_rule;
using testing::rows_of;
using testing::SpreadTable;
using torch::Tensor;
using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

std::vector<int64_t> first_ids(int64_t count) {
  std::vector<int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Gradients ones(std::vector<int64_t> ids, int64_t dim) {
  const auto count = static_cast<int64_t>(ids.size());
  return {std::move(ids), torch::ones({count, dim})};
}

TEST(ALookUp, ChangesNothing) {
  RowTable table({.name = "t", .dim = 8}, 7);
  const int64_t bytes = table.bytes();
  std::vector<float> weights(1000 * 8), again(1000 * 8);
  table.look_up(first_ids(1000), weights.data());
  EXPECT_EQ(table.bytes(), bytes);
  EXPECT_EQ(table.size(), 0);
  std::vector<int64_t> backwards = first_ids(1000);
  std::ranges::reverse(backwards);
  table.look_up(backwards, again.data());
  for (std::size_t k = 0; k < 1000; ++k) {
    EXPECT_TRUE(std::equal(weights.begin() + k * 8, weights.begin() + (k + 1) * 8, again.begin() + (999 - k) * 8));
  }
}

TEST(ALookUp, GivesPushedRowsAndInitialOnesInTheOrderAsked) {
  SpreadTable table({.name = "t", .dim = 3, .initial = 1}, row_rule(SGDOptions(0.5)));
  table.push(ones({4, 9}, 3), 0.5, 1);
  EXPECT_TRUE(torch::equal(table.weights({9, 5, 4, 9}).select(1, 0), torch::tensor({0.5f, 1.f, 0.5f, 0.5f})));
  EXPECT_EQ(table.size(), 2);
}

TEST(ALookUp, SaysWhenEachRowChangedLast) {
  SpreadTable table({.name = "t", .dim = 2}, row_rule(SGDOptions(0.5)));
  table.push(ones({1, 2}, 2), 0.5, 5);
  table.push(ones({2}, 2), 0.5, 8);
  std::vector<float> weights(6);
  std::vector<int64_t> positions(3);
  table.parts[0]->look_up(std::vector<int64_t>{1, 2, 3}, weights.data(), positions.data());
  EXPECT_EQ(positions, (std::vector<int64_t>{5, 8, 0}));
  // Who has seen row 1 as it was at 5 must learn that it is a new one.
  EXPECT_EQ(table.parts[0]->evict(8, 9), 1);
  table.parts[0]->look_up(std::vector<int64_t>{1, 2, 3}, weights.data(), positions.data());
  EXPECT_EQ(positions, (std::vector<int64_t>{9, 8, 9}));
}

/// The rows of a table after some steps, and those of a dense matrix under the optimizer of LibTorch, of which all rows
/// have a gradient in each step.
template <class Optimizer, class Options>
void expect_libtorchs_numbers(const Options& options, double tolerance) {
  constexpr int64_t kRows = 40, kDim = 19;
  SpreadTable table({.name = "t", .rows = kRows, .dim = kDim}, row_rule(options), 3);
  const std::vector<int64_t> ids = first_ids(kRows);
  Tensor dense = table.weights(ids).clone().requires_grad_();
  Optimizer optimizer({dense}, options);
  std::mt19937_64 random(3);
  for (int64_t step = 1; step <= 20; ++step) {
    Gradients gradients = drawn_gradients(random, kRows, kRows, kDim);
    gradients.ids = ids;
    dense.mutable_grad() = gradients.values.clone();
    optimizer.step();
    table.push(gradients, options.lr(), step);
  }
  EXPECT_TRUE(torch::allclose(table.weights(ids), dense.detach(), tolerance, tolerance))
      << (table.weights(ids) - dense.detach()).abs().max();
}

TEST(RowsThatAllHaveAGradient, HaveTheNumbersOfLibTorch) {
  expect_libtorchs_numbers<torch::optim::SGD>(SGDOptions(0.1), 1e-6);
  expect_libtorchs_numbers<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9), 1e-5);
  expect_libtorchs_numbers<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.5), 1e-5);
  expect_libtorchs_numbers<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true), 1e-5);
  expect_libtorchs_numbers<torch::optim::Adagrad>(AdagradOptions(0.1), 1e-6);
  expect_libtorchs_numbers<torch::optim::Adagrad>(AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(2), 1e-6);
  // LibTorch adds epsilon after the correction of the bias, and its rule for rows before.
  expect_libtorchs_numbers<torch::optim::Adam>(AdamOptions(0.01).eps(1e-12), 1e-5);
}

/// The bits of the rows' update by the loop of the fused update, which is what a variable of one row would have.
TEST(ARow, HasTheBitsOfAVariableOfItsNumbers) {
  constexpr int64_t kDim = 48;
  const auto rule = row_rule(AdamOptions(0.01));
  SpreadTable table({.name = "t", .dim = kDim}, rule, 2);
  const std::vector<int64_t> ids = first_ids(30);
  std::map<int64_t, Tensor> variables;  // weights, exp_avg, exp_avg_sq
  std::map<int64_t, int64_t> updates;
  for (const int64_t id : ids) variables[id] = torch::cat({table.weights({id}).view({-1}), torch::zeros({2 * kDim})});
  std::mt19937_64 random(5);
  for (int64_t step = 1; step <= 50; ++step) {
    Gradients gradients = drawn_gradients(random, 30, 9, kDim);
    std::set<int64_t> distinct(gradients.ids.begin(), gradients.ids.end());
    gradients.ids.assign(distinct.begin(), distinct.end());
    gradients.values = gradients.values.slice(0, 0, std::ssize(distinct)).contiguous();
    const double rate = 0.01 / static_cast<double>(step);
    for (std::size_t k = 0; k < gradients.ids.size(); ++k) {
      const int64_t id = gradients.ids[k];
      const Coefficients numbers = rule->rule().row_coefficients(++updates[id], rate);
      float* const row = variables[id].data_ptr<float>();
      BlockUpdate block{};
      block.weights = block.new_weights = row;
      for (int s = 0; s < 2; ++s) block.slots[s] = block.new_slots[s] = row + (s + 1) * kDim;
      block.gradient = gradients.values.data_ptr<float>() + static_cast<int64_t>(k) * kDim;
      block.count = kDim;
      block.coefficients = &numbers;
      block.clip = 0.5;
      update_block<float>(UpdateKind::kAdam)(block);
    }
    table.push(gradients, rate, step, {.factor = 0.5});
  }
  for (const int64_t id : ids) {
    EXPECT_TRUE(torch::equal(table.weights({id}).view({-1}), variables[id].slice(0, 0, kDim))) << "row " << id;
  }
}

TEST(Adam, CorrectsTheBiasOfARowByItsOwnUpdates) {
  // A first update moves each weight by the rate, against the sign of its gradient, however late it comes.
  SpreadTable table({.name = "t", .dim = 2, .initial = 0}, row_rule(AdamOptions(0.1).eps(1e-12)));
  for (int64_t step = 1; step <= 100; ++step) table.push(ones({1}, 2), 0.1, step);
  table.push(ones({2}, 2), 0.1, 101);
  EXPECT_NEAR(table.weights({2})[0][0].item<float>(), -0.1, 1e-6);
}

/// The rows of a table after drawn pushes.
template <class Options>
std::map<int64_t, testing::WholeRow> trained(const Options& rule, const EmbeddingOptions& options, int64_t servers,
                                             bool shuffled) {
  SpreadTable table(options, row_rule(rule), servers);
  std::mt19937_64 random(11);
  std::mt19937_64 order(servers);
  for (int64_t step = 1; step <= 60; ++step) {
    Gradients gradients = drawn_gradients(random, 2000, 150, options.dim);
    std::set<int64_t> distinct(gradients.ids.begin(), gradients.ids.end());
    gradients.ids.assign(distinct.begin(), distinct.end());
    gradients.values = gradients.values.slice(0, 0, std::ssize(distinct))
                           .to(options.dtype == torch::kDouble ? torch::kDouble : torch::kFloat)
                           .contiguous();
    if (shuffled) {
      std::vector<int64_t> permutation = first_ids(std::ssize(distinct));
      std::ranges::shuffle(permutation, order);
      std::vector<int64_t> ids;
      for (const int64_t k : permutation) ids.push_back(gradients.ids[static_cast<std::size_t>(k)]);
      gradients = {ids, gradients.values.index_select(0, torch::tensor(permutation, torch::kLong))};
    }
    table.push(gradients, 0.05, step);
    if (step % 20 == 0) {
      for (const auto& part : table.parts) part->evict(step - 15, step);
    }
  }
  EXPECT_GT(table.size(), 500);
  return rows_of(table);
}

TEST(Rows, HaveTheSameBitsOnAnyServersAndInAnyOrder) {
  for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    const EmbeddingOptions options{.name = "t", .dim = 6, .admit_after = 2, .evict_after = 15, .dtype = dtype};
    const auto adagrad = trained(AdagradOptions(0.05), options, 1, false);
    const auto adam = trained(AdamOptions(0.05), options, 1, false);
    for (const int64_t servers : {1, 2, 3, 4}) {
      EXPECT_EQ(trained(AdagradOptions(0.05), options, servers, true), adagrad);
      EXPECT_EQ(trained(AdamOptions(0.05), options, servers, true), adam);
    }
  }
}

TEST(RowsOfHalfPrecision, AreRoundedOnceForEachUpdate) {
  SpreadTable table({.name = "t", .dim = 2, .initial = 1, .dtype = torch::kBFloat16}, row_rule(SGDOptions(1)));
  table.push({{3}, torch::tensor({{0.001f, 0.01f}})}, 1, 1);
  EXPECT_TRUE(torch::equal(table.weights({3}), torch::tensor({{1 - 0.001f, 1 - 0.01f}}).to(torch::kBFloat16)));
}

TEST(ARepeatedId, IsSummedInOrderAndUpdatedOnce) {
  // In float32 (big + 1) - big is 0.
  const float big = 1e8f;
  SpreadTable table({.name = "t", .dim = 1, .initial = 0}, row_rule(AdagradOptions(1)));
  table.push({{5, -3, 5, 5, 5}, torch::tensor({{big}, {7.f}, {1.f}, {-big}, {3.f}})}, 1, 1);
  const auto rows = rows_of(table);
  // Weight and sum of squares.
  EXPECT_EQ(rows.at(5).numbers, (std::vector<double>{-1, 9}));
  EXPECT_EQ(rows.at(-3).numbers, (std::vector<double>{-1, 49}));
}

TEST(AnyNumber, IsARowWhereRowsIsZero) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();
  SpreadTable table({.name = "t", .dim = 1, .initial = 0}, row_rule(SGDOptions(1)), 4);
  table.push(ones({kLowest, -1, 0, kHighest}, 1), 1, 1);
  EXPECT_EQ(table.size(), 4);
  EXPECT_TRUE(torch::equal(table.weights({kHighest, kLowest, -1, 0, 1}).view({-1}),
                           torch::tensor({-1.f, -1.f, -1.f, -1.f, 0.f})));
}

TEST(AnIdOutOfRange, IsNamedAndNothingIsChanged) {
  SpreadTable table({.name = "users", .rows = 10, .dim = 1}, row_rule(SGDOptions(1)));
  const auto expect_refused = [&](std::vector<int64_t> ids, std::string_view row) {
    expect_error<UsageError>([&] { table.weights(ids); }, "LS-ROW-RANGE", {row, "users", "10 rows"});
    expect_error<UsageError>([&] { table.push(ones(ids, 1), 1, 1); }, "LS-ROW-RANGE", {row, "users", "10 rows"});
  };
  expect_refused({0, 10}, "row 10");
  expect_refused({0, 1, -1}, "row -1");
  EXPECT_EQ(table.size(), 0);
}

TEST(ARowOfAnotherServer, IsRefused) {
  RowTable part({.name = "t", .dim = 1}, 7, 0, 2);
  std::vector<float> weights(2);
  int64_t id = 0;
  while (server_of(row_hash(table_number("t"), id), 2) == 0) ++id;
  expect_error<InternalError>([&] { part.look_up({&id, 1}, weights.data()); }, "LS-INTERNAL", {"server 0 of 2"});
}

TEST(Admission, KeepsACountUntilARowWasPushedOftenEnough) {
  SpreadTable table({.name = "t", .dim = 2, .initial = 1, .admit_after = 3}, row_rule(SGDOptions(0.25)));
  const auto weight = [&](int64_t id) { return table.weights({id})[0][0].item<float>(); };
  // An id that comes twice in a step was pushed once.
  table.push(ones({1, 1}, 2), 0.25, 1);
  table.push(ones({1, 2}, 2), 0.25, 2);
  EXPECT_EQ(weight(1), 1);
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(table.parts[0]->counted(), 2);
  table.push(ones({1}, 2), 0.25, 3);
  EXPECT_EQ(weight(1), 0.75);
  EXPECT_EQ(weight(2), 1);
  EXPECT_EQ(table.size(), 1);
  EXPECT_EQ(table.parts[0]->counted(), 1);
  table.push(ones({1, 2}, 2), 0.25, 4);
  EXPECT_EQ(weight(1), 0.5);
  EXPECT_EQ(weight(2), 1);
}

TEST(Eviction, MakesARowNewWithItsSlotsAndItsCount) {
  SpreadTable table({.name = "t", .dim = 1, .initial = 0, .admit_after = 2}, row_rule(AdagradOptions(1)));
  for (int64_t step = 1; step <= 4; ++step) table.push({{1, 2}, torch::full({2, 1}, 3.f)}, 1, step);
  table.push(ones({2, 3}, 1), 1, 5);
  const auto before = rows_of(table);
  EXPECT_EQ(table.parts[0]->evict(5, 6), 1);
  EXPECT_EQ(table.weights({1}).item<float>(), 0);
  EXPECT_EQ(rows_of(table).at(2), before.at(2));
  EXPECT_EQ(table.parts[0]->counted(), 1);
  // The first push is counted alone, and the second starts from the initial weight and an empty slot.
  table.push(ones({1}, 1), 1, 7);
  EXPECT_EQ(table.weights({1}).item<float>(), 0);
  table.push(ones({1}, 1), 1, 8);
  EXPECT_EQ(rows_of(table).at(1).numbers, (std::vector<double>{-1, 1}));
  // Counts that nobody adds to go as well.
  EXPECT_EQ(table.parts[0]->evict(8, 9), 2);
  EXPECT_EQ(table.parts[0]->counted(), 0);
  EXPECT_EQ(table.size(), 1);
}

TEST(Eviction, GivesMemoryBack) {
  SpreadTable table({.name = "t", .dim = 32}, row_rule(AdagradOptions(1)));
  table.push(ones(first_ids(100), 32), 1, 1);
  std::vector<int64_t> many(10'000);
  std::iota(many.begin(), many.end(), 1000);
  table.push(ones(many, 32), 1, 2);
  table.push(ones(first_ids(100), 32), 1, 3);
  const int64_t bytes = table.parts[0]->bytes();
  EXPECT_EQ(table.parts[0]->evict(3, 4), 10'000);
  EXPECT_EQ(table.size(), 100);
  EXPECT_LT(table.parts[0]->bytes(), bytes - 10'000 * 256);
  EXPECT_EQ(rows_of(table).size(), 100u);
}

TEST(ALimit, NamesTableServerAndBytesBeforeARowIsMade) {
  const EmbeddingOptions options{.name = "users", .dim = 16, .limit_bytes = 200'000};
  SpreadTable table(options, row_rule(AdagradOptions(1)));
  RowTable& part = *table.parts[0];
  int64_t step = 0;
  std::vector<int64_t> ids = first_ids(100);
  for (;; ++step) {
    for (int64_t& id : ids) id += 100;
    try {
      part.check_room(ids);
    } catch (const UsageError&) {
      break;
    }
    table.push(ones(ids, 16), 1, step + 1);
    ASSERT_LT(step, 1000);
  }
  EXPECT_GT(table.size(), 700);
  EXPECT_LE(part.bytes(), options.limit_bytes);
  expect_error<UsageError>([&] { part.check_room(ids); }, "LS-TABLE-FULL",
                           {"users", "server 0", "100 more rows", "200000"});
  // Rows that are there have room, and so has a push of fewer rows until others take the place.
  part.check_room(std::vector<int64_t>{100, 101, 199});
  part.check_room({ids.data(), 1});
  expect_error<UsageError>([&] { part.check_room({ids.data(), 1}, 1000); }, "LS-TABLE-FULL", {"1001 more rows"});
  EXPECT_EQ(part.count_new(ids), 100);
  EXPECT_EQ(part.count_new(std::vector<int64_t>{100, 99}), 1);
}

TEST(ALimit, CountsWhatAdmissionKeepsAsWhatItTakes) {
  SpreadTable table({.name = "t", .dim = 64, .admit_after = 2, .limit_bytes = 300'000}, row_rule(AdagradOptions(1)));
  // Counts take a hundredth of what rows do.
  table.parts[0]->check_room(first_ids(3000));
  table.push(ones(first_ids(3000), 64), 1, 1);
  expect_error<UsageError>([&] { table.parts[0]->check_room(first_ids(3000)); }, "LS-TABLE-FULL", {"3000 more rows"});
}

TEST(ARule, ThatUpdatesNoSingleRowsIsRefused) {
  const auto refused = [](const auto& options, std::string_view what) {
    expect_error<UsageError>([&] { row_rule(options); }, "LS-ROW-RULE", {what, "table 't'"});
  };
  refused(torch::optim::AdamWOptions(1e-3), "AdamW");
  refused(torch::optim::RMSpropOptions(1e-3), "RMSprop");
  refused(AdamOptions(1e-3).amsgrad(true), "amsgrad");
  refused(AdagradOptions(1e-3).weight_decay(0.1), "weight_decay");
  refused(SGDOptions(1e-3).momentum(0.9).weight_decay(0.1), "weight_decay");
}

TEST(ATable, HasOneRuleFromItsFirstRowOn) {
  SpreadTable table({.name = "t", .dim = 2}, nullptr);
  expect_error<UsageError>([&] { table.push(ones({1}, 2), 1, 1); }, "LS-ROW-RULE", {"no optimizer"});
  table.parts[0]->use(row_rule(SGDOptions(1)));
  table.parts[0]->use(row_rule(AdagradOptions(1)));
  table.push(ones({1}, 2), 1, 1);
  table.parts[0]->use(row_rule(AdagradOptions(2)));
  expect_error<UsageError>([&] { table.parts[0]->use(row_rule(AdamOptions(1))); }, "LS-ROW-RULE", {"Adagrad", "Adam"});
  expect_error<UsageError>([&] { table.parts[0]->use(row_rule(AdagradOptions(1).lr_decay(0.1))); }, "LS-ROW-RULE");
}

TEST(ATableOfFiftyMillionRows, TakesLittleMoreThanTheRowsThatWerePushed) {
  SpreadTable table({.name = "t", .rows = 50'000'000, .dim = 32}, row_rule(AdagradOptions(0.05)));
  std::vector<int64_t> ids(1000);
  const Tensor values = torch::full({1000, 32}, 0.01f);
  for (int64_t step = 0; step < 100; ++step) {
    for (int64_t k = 0; k < 1000; ++k) ids[k] = (step * 1000 + k) * 499;
    table.parts[0]->apply({ids, address_of(values), 0.05, step + 1});
  }
  EXPECT_EQ(table.size(), 100'000);
  EXPECT_LE(table.parts[0]->bytes(), 30'000'000);
}

}  // namespace
}  // namespace lockstep::internal
