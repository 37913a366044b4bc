// What a table of rows on a parameter server takes in memory, and how long look-ups and updates of its rows take.
//
//   row_table            memory, then times of 1,000 rows of 32 floats in tables of 10,000, 100,000 and 1,000,000 rows
//   row_table --cut      also what an update costs beside a cut that is not read yet
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/table/row_table.h"

namespace {

using namespace lockstep::internal;
using Clock = std::chrono::steady_clock;

constexpr int64_t kDim = 32;
constexpr int64_t kRows = 1000;  // of one look-up or push

double resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return static_cast<double>(pages) * 4096 / 1e6;
}

template <class Options>
std::shared_ptr<const RowRule> rule_of(const Options& options) {
  return std::make_shared<const RowRule>(make_rule(options), "t");
}

void measure_memory() {
  std::mt19937_64 random(1);
  std::vector<float> weights(kRows * kDim), gradients(kRows * kDim, 0.01f);
  std::vector<int64_t> ids(kRows);
  const double before = resident_megabytes();
  RowTable table({.name = "t", .rows = 50'000'000, .dim = kDim}, 7);
  table.use(rule_of(torch::optim::AdagradOptions(0.05)));
  for (int round = 0; round < 2000; ++round) {
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % 50'000'000);
    table.look_up(ids, weights.data());
  }
  const double after_look_ups = resident_megabytes();
  for (int64_t step = 1; table.size() < 100'000; ++step) {
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % 50'000'000);
    table.apply({ids, gradients.data(), 0.05, step});
  }
  const double grown = resident_megabytes() - before;
  fmt::print(
      "memory: 2,000,000 look-ups +{:.1f} MB; {} rows pushed of 50,000,000, Adagrad: +{:.1f} MB, {:.0f} bytes a row; "
      "bytes() says {:.1f} MB\n",
      after_look_ups - before, table.size(), grown, grown * 1e6 / static_cast<double>(table.size()),
      static_cast<double>(table.bytes()) / 1e6);
}

/// The median time of a call in microseconds; `prepare` comes before each and is not timed.
double median_of(int rounds, const std::function<void()>& prepare, const std::function<void()>& call) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    prepare();
    const auto begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

void measure_times(int64_t rows, bool with_cut) {
  std::mt19937_64 random(2);
  std::vector<float> weights(kRows * kDim), gradients(kRows * kDim, 0.01f);
  std::vector<int64_t> ids(kRows);
  // Rows that are pushed together stand anywhere in the table's memory.
  std::vector<int64_t> order(static_cast<std::size_t>(rows));
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int64_t>(k) * 13;
  std::ranges::shuffle(order, random);
  const auto filled = [&](std::shared_ptr<const RowRule> rule) {
    auto table = std::make_unique<RowTable>(lockstep::EmbeddingOptions{.name = "t", .dim = kDim}, 7);
    table->use(std::move(rule));
    for (auto next = order.begin(); next != order.end(); next += kRows) {
      ids.assign(next, next + kRows);
      std::ranges::sort(ids);
      table->apply({ids, gradients.data(), 0.05, 1});
    }
    return table;
  };
  const auto begin = Clock::now();
  const auto adagrad = filled(rule_of(torch::optim::AdagradOptions(0.05)));
  const double fill =
      std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / static_cast<double>(rows);
  const auto draw = [&](int64_t offset) {
    return [&, offset] {
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % static_cast<uint64_t>(rows)) * 13 + offset;
    };
  };
  const auto draw_ascending = [&] {
    draw(0)();
    std::ranges::sort(ids);
    // Distinct, as workers send them.
    for (std::size_t k = 1; k < ids.size(); ++k) ids[k] = std::max(ids[k], ids[k - 1] + 13);
  };
  const double look_up = median_of(500, draw(0), [&] { adagrad->look_up(ids, weights.data()); });
  const double new_rows = median_of(500, draw(1), [&] { adagrad->look_up(ids, weights.data()); });
  const double update = median_of(500, draw_ascending, [&] { adagrad->apply({ids, gradients.data(), 0.05, 2}); });
  const double unsorted = median_of(500, draw(0), [&] { adagrad->apply({ids, gradients.data(), 0.05, 2}); });
  fmt::print(
      "{:>9} rows: first push {:.0f} ns a row; of {} rows: look-up {:.1f} us, look-up of new rows {:.1f} us, Adagrad "
      "{:.1f} us, with ids out of order {:.1f} us\n",
      rows, fill, kRows, look_up, new_rows, update, unsorted);
  {
    const auto adam = filled(rule_of(torch::optim::AdamOptions(0.05)));
    const double time = median_of(500, draw_ascending, [&] { adam->apply({ids, gradients.data(), 0.05, 2}); });
    fmt::print("{:>9} rows: Adam {:.1f} us\n", rows, time);
  }
  if (!with_cut) return;
  const auto cut_begin = Clock::now();
  std::optional<TableCut> cut(adagrad->cut());
  const double cut_time = std::chrono::duration<double, std::micro>(Clock::now() - cut_begin).count();
  const double beside = median_of(20, draw_ascending, [&] { adagrad->apply({ids, gradients.data(), 0.05, 3}); });
  fmt::print("{:>9} rows: a cut {:.0f} us; Adagrad in the first pushes after it {:.1f} us\n", rows, cut_time, beside);
}

}  // namespace

int main(int argc, char** argv) {
  const bool with_cut = argc > 1 && std::string_view(argv[1]) == "--cut";
  measure_memory();
  for (const int64_t rows : {10'000, 100'000, 1'000'000}) measure_times(rows, with_cut);
}
