// Measures what the fixed order of additions costs: a sum over replicas in tree order, as the library adds, against one
// pass in which the compiler may add as it likes. Both read the same memory and write one result.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "lockstep/reduce/loops/tree_sum.h"
#include "tools/bench/pinned_threads.h"
#include "tools/console.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;

template <int kReplicas>
__attribute__((optimize("O3", "fast-math"), target_clones("avx512f", "avx2", "default"))) void add_freely(
    const float* const* inputs, float* __restrict sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float total = 0;
    for (int r = 0; r < kReplicas; ++r) total += inputs[r][i];
    sum[i] = total;
  }
}

/// Both orders in alternation, seconds of each round.
struct Measured {
  std::vector<double> tree;
  std::vector<double> free;
};

template <int kReplicas>
Measured measure_orders(int64_t elements, int threads, int rounds) {
  std::vector<std::vector<float>> inputs(kReplicas, std::vector<float>(static_cast<std::size_t>(elements), 1));
  std::vector<float> output(static_cast<std::size_t>(elements));
  const auto slices = [&](int thread, const auto& add) {
    std::array<const float*, kReplicas> pointers;
    std::transform(inputs.begin(), inputs.end(), pointers.begin(), [](const auto& input) { return input.data(); });
    const int64_t begin = elements * thread / threads;
    const int64_t end = elements * (thread + 1) / threads;
    for (int64_t offset = begin; offset < end; offset += internal::kSumBlock)
      add(pointers, offset, std::min(internal::kSumBlock, end - offset));
  };
  const auto tree = [&](int thread, int64_t calls) {
    static_assert(kReplicas <= internal::kOneRowReplicas);
    const auto sum_of = internal::tree_sum<float>();
    for (int64_t call = 0; call < calls; ++call) {
      slices(thread, [&](const auto& pointers, int64_t offset, int64_t count) {
        sum_of(pointers.data(), kReplicas, offset, count, output.data() + offset);
      });
    }
  };
  const auto freely = [&](int thread, int64_t calls) {
    for (int64_t call = 0; call < calls; ++call) {
      slices(thread, [&](auto pointers, int64_t offset, int64_t count) {
        for (const float*& pointer : pointers) pointer += offset;
        add_freely<kReplicas>(pointers.data(), output.data() + offset, count);
      });
    }
  };
  Measured measured;
  for (int round = 0; round < rounds; ++round) {
    // Short, and many in turn: what a machine's host does to one side it then does to the other too.
    const TimingOptions options{.blocks = 1, .block_seconds = 0.04, .warm_up_calls = 1};
    measured.tree.push_back(measure_on_threads(threads, tree, options).median);
    measured.free.push_back(measure_on_threads(threads, freely, options).median);
  }
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t mebibytes = 64;
  int threads = 2;
  int rounds = 75;
  CLI::App app("What tree order costs against a free one", "addition_order");
  app.add_option("--mebibytes", mebibytes, "of each replica")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--threads", threads)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const int64_t elements = (mebibytes << 20) / static_cast<int64_t>(sizeof(float));
  std::vector<std::vector<std::string>> table{{"replicas", "tree order", "free order", "price", "quartiles"}};
  const auto row = [&](int replicas, const Measured& measured) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < measured.tree.size(); ++i) ratios.push_back(measured.tree[i] / measured.free[i]);
    // Half of the pairs lie between the quartiles; the median of many is known much better than a pair.
    std::sort(ratios.begin(), ratios.end());
    const auto price = [&](double share) {
      const auto at = static_cast<std::size_t>(share * static_cast<double>(ratios.size() - 1));
      return fmt::format("{:+.1f} %", 100 * (ratios[at] - 1));
    };
    table.push_back({fmt::format("{}", replicas), text_of(summarize(measured.tree)), text_of(summarize(measured.free)),
                     price(0.5), fmt::format("{} to {}", price(0.25), price(0.75))});
  };
  row(2, measure_orders<2>(elements, threads, rounds));
  row(4, measure_orders<4>(elements, threads, rounds));
  row(8, measure_orders<8>(elements, threads, rounds));
  print_columns(table);
}
