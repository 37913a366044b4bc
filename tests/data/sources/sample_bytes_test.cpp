// A sample as bytes, and bytes that are none.
#include "lockstep/data/sources/sample_bytes.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "lockstep/data/formats/records/tensor_bytes.h"

namespace lockstep {
namespace {

using internal::bytes_of;
using internal::sample_of;
using internal::TensorBytes;

std::string bytes_with(const TensorBytes& tensor) {
  std::string bytes;
  internal::append(bytes, tensor);
  return bytes;
}

TEST(SampleBytes, AreTheSampleAgain) {
  const Batch sample{.input = torch::rand({1, 3, 2}).transpose(1, 2),
                     .target = torch::tensor({true}),
                     .more = {{"", torch::full({1}, 2.5, torch::kHalf)}, {"of no rows", torch::empty({0, 4})}}};
  const std::optional<Batch> again = sample_of(bytes_of(sample));
  ASSERT_TRUE(again);
  EXPECT_TRUE(torch::equal(again->input, sample.input));
  EXPECT_TRUE(torch::equal(again->target, sample.target));
  ASSERT_EQ(again->more.size(), 2u);
  for (const auto& [name, tensor] : sample.more) {
    EXPECT_TRUE(torch::equal(again->more.at(name), tensor)) << name;
    EXPECT_EQ(again->more.at(name).sizes(), tensor.sizes());
    EXPECT_EQ(again->more.at(name).scalar_type(), tensor.scalar_type());
  }
}

TEST(SampleBytes, ThatAreCutOffAreNone) {
  const std::string bytes = bytes_of({.input = torch::rand({1, 2}), .target = torch::zeros({1}, torch::kLong)});
  int samples = 0;
  for (std::size_t length = 0; length < bytes.size(); ++length) samples += sample_of(bytes.substr(0, length)) ? 1 : 0;
  EXPECT_EQ(samples, 1) << "the input alone is a sample too";
  EXPECT_FALSE(sample_of(bytes + "x"));
}

TEST(SampleBytes, OfADtypeThatThereIsNotAreNone) {
  const auto count = static_cast<uint64_t>(at::ScalarType::NumOptions);
  const auto undefined = static_cast<uint64_t>(at::ScalarType::Undefined);
  const auto quantized = static_cast<uint64_t>(at::ScalarType::QInt8);
  for (const uint64_t dtype : {count, undefined, quantized, std::numeric_limits<uint64_t>::max()}) {
    EXPECT_FALSE(sample_of(bytes_with({.name = "i", .dtype = dtype, .sizes = {0}}))) << dtype;
  }
}

TEST(SampleBytes, OfSizesThatNoTensorHasAreNone) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  const auto dtype = static_cast<uint64_t>(at::ScalarType::Float);
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {-1}, {0, -1}, {1}, {kHuge, 4}, {0, kHuge, kHuge}, {kHuge, kHuge, 0}, std::vector<int64_t>(65, 0)}) {
    EXPECT_FALSE(sample_of(bytes_with({.name = "i", .dtype = dtype, .sizes = sizes}))) << sizes.size();
  }
  EXPECT_TRUE(sample_of(bytes_with({.name = "i", .dtype = dtype, .sizes = {0, 3}})));
}

TEST(SampleBytes, OfOtherNamesAreNone) {
  const auto dtype = static_cast<uint64_t>(at::ScalarType::Float);
  const std::string input = bytes_with({.name = "i", .dtype = dtype, .sizes = {0}});
  EXPECT_TRUE(sample_of(input));
  for (const char* name : {"", "x", "in"}) {
    EXPECT_FALSE(sample_of(input + bytes_with({.name = name, .dtype = dtype, .sizes = {0}}))) << name;
  }
}

}  // namespace
}  // namespace lockstep
