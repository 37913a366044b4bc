// Whether a comparison finds another order of additions, for small shapes and for large ones.
#include "lockstep/linear/product_order.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/fingerprint.h"
#include "lockstep/core/loops/simd.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/linear/few_samples_product.h"
#include "lockstep/lockstep.h"
#include "lockstep/reduce/factors.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"
#include "tests/support/worker_processes.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::Report;
using lockstep::testing::WorkerProcesses;

struct Shape {
  std::optional<LinearProduct> product;  // none: the gradient of the weight
  int64_t samples;
  int64_t rows;
  int64_t columns;
};

/// Pairs of a small shape and a large one with the same product, whose test numbers repeat one piece of memory.
const std::vector<std::array<Shape, 2>>& shapes() {
  static const std::vector<std::array<Shape, 2>> all{
      {{{LinearProduct::kOutput, 8, 64, 448}, {LinearProduct::kOutput, 8, 1024, 4096}}},
      {{{LinearProduct::kOutputWithBias, 8, 64, 448}, {LinearProduct::kOutputWithBias, 8, 16, 300'000}}},
      {{{LinearProduct::kInputGradient, 8, 448, 64}, {LinearProduct::kInputGradient, 8, 270'001, 15}}},
      {{{std::nullopt, 128, 64, 64}, {std::nullopt, 128, 50'257, 32}}},
  };
  return all;
}

WORKER_BODY(compares) {
  at::set_num_threads(1);
  std::string answers = "answers ";
  for (const auto& pair : shapes()) {
    for (const Shape& one : pair) {
      const bool same = one.product
                            ? sum_order_of_libtorch(*one.product, one.samples, one.rows, one.columns).has_value()
                            : zero_sums_of_libtorch(one.samples, one.rows, one.columns).has_value();
      answers += same ? '1' : '0';
    }
  }
  lockstep::testing::report(answers);
}

/// Trains a layer with factors wherever that can be, and without, and says what describe() says of the gradient.
WORKER_BODY(trains) {
  using namespace lockstep;
  const auto train = [](const char* factored) {
    const testing::FactoredGradientsAre scope(factored);
    MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 2, .seed = 1});
    const Variable weight =
        strategy.make_variable(torch::arange(256 * 300, torch::kFloat).sin().view({256, 300}), {.name = "weight"});
    const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{weight}, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const torch::Tensor x = torch::arange(8 * 300, torch::kFloat).cos().view({8, 300}) + ctx.replica_id().value();
        x.mm(weight.value(ctx).t()).pow(2).mean().backward();
        optimizer.step(ctx);
      });
    }
    return std::pair(weight.read(), strategy.describe_variables());
  };
  const auto [with, described] = train("always");
  const auto [without, ignored] = train("off");
  testing::report(std::string("trained ") + (torch::equal(with, without) ? "alike" : "apart") + ", " +
                  (described.find("other bits") == std::string::npos ? "factors" : "other bits") + ", " +
                  platform_fingerprint());
}

std::string trained_with(const WorkerProcesses::Environment& environment) {
  WorkerProcesses one("trains", 1, environment);
  return one.expect(0, "trained ", std::chrono::seconds(120)).text.substr(8);
}

std::string answers_with(const WorkerProcesses::Environment& environment) {
  WorkerProcesses one("compares", 1, environment);
  return one.expect(0, "answers ", std::chrono::seconds(120)).text.substr(8);
}

TEST(ProductOrder, IsAnotherOneForSmallAndLargeShapesWhereMklUsesNoMultiplyAdd) {
  if (!few_samples_products() || !Factors::available()) {
    GTEST_SKIP() << "no products of our own without AVX2 and FMA, or where LOCKSTEP_SIMD switches them off";
  }
  if (!at::hasMKL()) GTEST_SKIP() << "the matrix library is not MKL, of which MKL_CBWR is a setting";
  EXPECT_EQ(answers_with({{"MKL_CBWR", "COMPATIBLE"}}), std::string(2 * shapes().size(), '0'));
}

TEST(ProductOrder, OfMklOnAmdsProcessorsIsKnown) {
#if defined(__x86_64__)
  if (!Factors::available() || !kTellsRunningNode || !at::hasMKL() || !__builtin_cpu_is("amd")) {
    GTEST_SKIP() << "no AMD processor with AVX2 and FMA, no MKL, or a LibTorch that keeps no factors";
  }
  EXPECT_EQ(trained_with({}).rfind("alike, factors,", 0), 0u);
#else
  GTEST_SKIP() << "this is none of AMD's processors";
#endif
}

TEST(ProductOrder, ThatIsAnotherOneLeavesGradientsInMemoryWithTheSameBits) {
  if (!lockstep::testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  if (!at::hasMKL()) GTEST_SKIP() << "the matrix library is not MKL, of which MKL_CBWR is a setting";
  const std::string usual = trained_with({});
  const std::string other = trained_with({{"MKL_CBWR", "COMPATIBLE"}});
  EXPECT_EQ(usual.substr(0, usual.rfind(' ')), "alike, factors,");
  EXPECT_EQ(other.substr(0, other.rfind(' ')), "alike, other bits,");
  // Workers of which one adds in another order are told so when they meet.
  EXPECT_NE(usual.substr(usual.rfind(' ')), other.substr(other.rfind(' ')));
}

TEST(ProductOrder, OfMklsKernelsForIntelsAvx512IsKnown) {
#if defined(__x86_64__)
  if (simd() != Simd::kAvx512 || !__builtin_cpu_is("intel")) {
    GTEST_SKIP() << "this is none of Intel's processors with AVX-512, or LOCKSTEP_SIMD switches AVX-512 off";
  }
  if (!at::hasMKL()) GTEST_SKIP() << "the matrix library is not MKL";
  for (const char* const kernels : {"AVX512,STRICT", "AVX512"}) {
    EXPECT_EQ(answers_with({{"MKL_CBWR", kernels}}), std::string(2 * shapes().size(), '1')) << kernels;
  }
  // The kernels for AVX2 add in chains of 192. Their sums without a bias begin otherwise than the library's.
  EXPECT_EQ(answers_with({{"MKL_CBWR", "AVX2,STRICT"}}).substr(2, 2), "11");
#else
  GTEST_SKIP() << "this is none of Intel's processors";
#endif
}

TEST(ProductOrder, OfOneSampleIsThatOfSeveral) {
  if (!Factors::available())
    GTEST_SKIP() << "no factors without AVX2 and FMA, or where LOCKSTEP_SIMD switches them off";
  // OpenBLAS adds a single product to +0, which has the bits of no Factors.
  if (!at::hasMKL()) GTEST_SKIP() << "the matrix library is not MKL, which leaves a single product as it is";
  at::set_num_threads(1);
  if (!zero_sums_of_libtorch(2, 64, 64)) GTEST_SKIP() << "the matrix library adds in another order";
  EXPECT_TRUE(zero_sums_of_libtorch(1, 64, 64).has_value());
  EXPECT_TRUE(zero_sums_of_libtorch(1, 2048, 1024).has_value());
}

}  // namespace
}  // namespace lockstep::internal
