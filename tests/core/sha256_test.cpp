#include "lockstep/core/sha256.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep {
namespace {

TEST(Sha256, IsThatOfNameDtypeShapeAndBytes) {
  // printf 'w\0Float\0[2]\0\0\0\200\077\0\0\0\100' | sha256sum
  EXPECT_EQ(sha256_of({{"w", torch::tensor({1.f, 2.f})}}),
            "95a13fc0e6e752351d816ffdfc5793e533c4c40623f4c0316aa718272db93f89");
}

TEST(Sha256, GoesByLogicalOrderNotByMemory) {
  const auto tensor = torch::arange(6).view({2, 3}).to(torch::kFloat);
  const auto turned = tensor.t().contiguous().t();
  EXPECT_NE(tensor.strides(), turned.strides());
  EXPECT_EQ(sha256_of({{"w", tensor}}), sha256_of({{"w", turned}}));
}

TEST(Sha256, DiffersByNameShapeDtypeAndOrder) {
  const auto a = torch::zeros({4});
  const auto digest = sha256_of({{"a", a}, {"b", a}});
  EXPECT_NE(digest, sha256_of({{"b", a}, {"a", a}}));
  EXPECT_NE(sha256_of({{"a", a}}), sha256_of({{"a", a.view({2, 2})}}));
  EXPECT_NE(sha256_of({{"a", a}}), sha256_of({{"a", a.to(torch::kInt)}}));
}

}  // namespace
}  // namespace lockstep
