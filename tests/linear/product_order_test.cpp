// Whether a comparison finds another order of additions, for small shapes and for large ones.
#include "lockstep/linear/product_order.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/simd.h"
#include "lockstep/linear/few_samples_product.h"
#include "lockstep/reduce/factors.h"
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
