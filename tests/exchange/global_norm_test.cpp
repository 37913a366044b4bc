// The norm of gradients: the same function of the gradients in each form of an update, and the one that is promised.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/host_update.h"

namespace lockstep {
namespace {

using torch::Tensor;

constexpr int64_t kBlock = 2048;  // floats in 8 KiB
constexpr int64_t kDoubleBlock = 1024;

/// Numbers of which a few sums over replicas are exact, so that only the order of squares can be seen in a norm.
Tensor exact_numbers(int64_t count, int64_t kind) {
  return ((torch::arange(count) * 7919 + 31 * kind) % 4093 - 2046).to(torch::kDouble).div(1024).to(torch::kFloat);
}

/// The sum of squares of at most kBlock numbers, in the order of docs/determinism.md, written out.
template <class T>
double squares_of_piece(const T* numbers, int64_t count) {
  double sums[64];
  for (int64_t column = 0; column < 64; ++column) {
    T sum = 0;
    for (int64_t i = column; i < count; i += 64) {
      const T square = numbers[i] * numbers[i];
      sum = sum + square;
    }
    sums[column] = static_cast<double>(sum);
  }
  for (int half = 32; half > 0; half /= 2) {
    for (int column = 0; column < half; ++column) sums[column] += sums[column + half];
  }
  return sums[0];
}

template <class T>
void append_blocks(std::vector<double>& squares, const Tensor& gradient, int64_t block) {
  const T* const numbers = gradient.data_ptr<T>();
  for (int64_t first = 0; first < gradient.numel(); first += block)
    squares.push_back(squares_of_piece(numbers + first, std::min(block, gradient.numel() - first)));
}

/// In groups of 256, and groups of groups.
double sum_of_blocks(std::vector<double> squares) {
  while (squares.size() > 1) {
    std::vector<double> groups;
    for (std::size_t i = 0; i < squares.size(); ++i) {
      if (i % 256 == 0) groups.push_back(0);
      groups.back() += squares[i];
    }
    squares = groups;
  }
  return squares.front();
}

/// Variables around the sizes of columns, blocks and groups of blocks.
struct ManyBlocks {
  explicit ManyBlocks(Strategy& strategy) {
    for (const int64_t size : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, kBlock - 1, kBlock, kBlock + 1,
                               100 * kBlock, 151 * kBlock + 5, 2 * kBlock + 64, 3 * kBlock}) {
      const auto name = fmt::format("v{}", variables.size());
      variables.push_back(strategy.make_variable(torch::ones({size}), {.name = name}));
    }
    variables.push_back(
        strategy.make_variable(torch::ones({3 * kDoubleBlock + 70}, torch::kDouble), {.name = "double"}));
    optimizer = strategy.make_optimizer(variables, torch::optim::AdamWOptions(0.01));
  }
  /// Of replica 0; replica r has r + 1 times as much.
  Tensor gradient(std::size_t i) const {
    const auto kind = static_cast<int64_t>(i);
    const int64_t size = variables[i].read().numel();
    return exact_numbers(size, kind).to(variables[i].read().scalar_type());
  }
  /// A step without gradients of variable `absent`; its norm.
  double step(Strategy& strategy, std::size_t absent, const StepOptions& options) const {
    double norm = 0;
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < variables.size(); ++i) gradients.push_back(gradient(i));
    strategy.run([&](ReplicaContext& ctx) {
      Tensor loss = torch::zeros({}, torch::kDouble);
      for (std::size_t i = 0; i < variables.size(); ++i) {
        const Tensor own = gradients[i] * (1 + static_cast<double>(ctx.replica_id().value()));
        if (i != absent) loss = loss + (variables[i].value(ctx) * own).sum();
      }
      loss.backward();
      const StepInfo info = optimizer.step(ctx, options);
      if (ctx.replica_id() == testing::first_replica(strategy)) norm = info.global_norm;
    });
    return norm;
  }
  /// The norm of such a step with 4 replicas, as it is promised. An absent variable's blocks count as 0.
  double promised_norm(std::size_t absent) const {
    std::vector<double> squares;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      Tensor sum = gradient(i) * 10;
      if (i == absent) sum.zero_();
      sum.scalar_type() == torch::kDouble ? append_blocks<double>(squares, sum, kDoubleBlock)
                                          : append_blocks<float>(squares, sum, kBlock);
    }
    EXPECT_GT(squares.size(), 257U);
    return std::sqrt(sum_of_blocks(squares));
  }
  std::string digest() const {
    optimizer.gather_slots();
    std::vector<std::pair<std::string, Tensor>> named;
    for (const Variable& one : variables) named.emplace_back(one.name(), one.read());
    for (const Variable& one : optimizer.slots()) named.emplace_back(one.name(), one.read());
    return sha256_of(named);
  }
  std::vector<Variable> variables;
  Optimizer optimizer;
};

TEST(GlobalNorm, IsTheOnePromisedInAllForms) {
  testing::expect_same_in_all_forms([](Strategy& strategy) {
    const ManyBlocks net(strategy);
    constexpr std::size_t kNone = 1000;
    constexpr std::size_t kMany = 7;  // 100 blocks, before others
    std::vector<std::string> found;
    for (const std::size_t absent : {kNone, kMany}) {
      for (const bool clips : {false, true}) {
        StepOptions options{.loss_scaled_by_hand = true};
        if (clips) options.clip_global_norm = 0.5;
        const double norm = net.step(strategy, absent, options);
        EXPECT_EQ(norm, net.promised_norm(absent)) << "clips " << clips << ", absent " << absent;
        found.push_back(fmt::format("{:a} {}", norm, net.digest()));
      }
    }
    return found;
  });
}

TEST(GlobalNorm, IsThatOfLibTorchAndOfFloat64UpToRounding) {
  MirroredStrategy strategy({.devices = testing::lanes(2), .replicas = 4, .seed = 3});
  const ManyBlocks net(strategy);
  std::vector<Tensor> like;
  double squares = 0;
  for (std::size_t i = 0; i < net.variables.size(); ++i) {
    like.push_back(torch::zeros_like(net.variables[i].read()).requires_grad_());
    like.back().mutable_grad() = net.gradient(i) * 10;
    squares += like.back().grad().to(torch::kDouble).square().sum().item<double>();
  }
  const double expected = torch::nn::utils::clip_grad_norm_(like, 0.5);
  const double norm = net.step(strategy, 1000, {.clip_global_norm = 0.5, .loss_scaled_by_hand = true});
  EXPECT_NEAR(norm, expected, 1e-5 * expected);
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-7 * norm);
}

TEST(GlobalNorm, OfHalfPrecisionAddsTwoPiecesOfABlock) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .seed = 3});
  const int64_t count = 3 * 2 * kBlock + kBlock + 100;
  const Variable half = strategy.make_variable(torch::ones({count}, torch::kBFloat16), {.name = "half"});
  const Optimizer optimizer = strategy.make_optimizer({half}, torch::optim::SGDOptions(0.1));
  const Tensor gradient = exact_numbers(count, 1).to(torch::kBFloat16);
  const auto norms = strategy.run([&](ReplicaContext& ctx) {
    (half.value(ctx) * gradient).sum().backward();
    return optimizer.step(ctx, {.loss_scaled_by_hand = true}).global_norm;
  });
  const Tensor wide = gradient.to(torch::kFloat);
  std::vector<double> pieces;
  append_blocks<float>(pieces, wide, kBlock);
  std::vector<double> squares;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i % 2 == 0) squares.push_back(0);
    squares.back() += pieces[i];
  }
  EXPECT_EQ(norms[0], std::sqrt(sum_of_blocks(squares)));
}

TEST(GlobalNorm, OfSparseGradientsAddsRowsInGroups) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kWidth = kBlock + 100;  // a row is two pieces
  const Tensor numbers = exact_numbers(kRows * kWidth, 2).view({kRows, kWidth});
  std::vector<double> squares;
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<double> pieces;
    append_blocks<float>(pieces, numbers[row].contiguous() * 10, kBlock);
    squares.push_back(pieces[0] + pieces[1]);
  }
  testing::expect_same_in_all_forms(
      [&](Strategy& strategy) {
        const Variable table = strategy.make_variable(torch::ones({2 * kRows, kWidth}), {.name = "table"});
        const Optimizer optimizer = strategy.make_optimizer({table}, torch::optim::SGDOptions(0.1));
        double norm = 0;
        strategy.run([&](ReplicaContext& ctx) {
          const Tensor rows =
              torch::embedding(table.value(ctx), torch::arange(kRows) * 2, -1, /*scale_grad_by_freq=*/false,
                               /*sparse=*/true);
          (rows * numbers * (1 + static_cast<double>(ctx.replica_id().value()))).sum().backward();
          const StepInfo info = optimizer.step(ctx, {.clip_global_norm = 1, .loss_scaled_by_hand = true});
          if (ctx.replica_id() == testing::first_replica(strategy)) norm = info.global_norm;
        });
        EXPECT_EQ(norm, std::sqrt(sum_of_blocks(squares)));
        return std::vector<std::string>{fmt::format("{:a} {}", norm, sha256_of({{"table", table.read()}}))};
      },
      /*can_ask=*/false);
}

}  // namespace
}  // namespace lockstep
