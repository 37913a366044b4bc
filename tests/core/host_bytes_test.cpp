// Tests how the host's code gets at the elements of tensors, and which tensors it is refused.
#include "lockstep/core/tensors/host_bytes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

TEST(HostBytes, AreTheTensorsOwnMemory) {
  const at::Tensor values = at::tensor({1.5f, -2.0f, 4.0f});
  EXPECT_TRUE(std::ranges::equal(host_numbers<float>(values), std::array{1.5f, -2.0f, 4.0f}));
  EXPECT_EQ(host_bytes(values).size(), 3 * sizeof(float));
  host_numbers_to_write<float>(values)[1] = 8;
  EXPECT_EQ(values[1].item<float>(), 8);
  std::ranges::fill(host_bytes_to_write(values.narrow(0, 2, 1)), std::byte{});
  EXPECT_EQ(values[2].item<float>(), 0);
}

TEST(HostBytes, AreNoneOfATensorWithoutElements) {
  EXPECT_TRUE(host_bytes(at::empty({0, 3})).empty());
  EXPECT_TRUE(host_numbers_to_write<int64_t>(at::empty({0}, at::kLong)).empty());
}

TEST(HostBytes, RefuseMemoryThatIsNotTheHosts) {
  const at::Tensor elsewhere = at::empty({2}, at::TensorOptions(at::kFloat).device(at::kMeta));
  EXPECT_THROW(host_bytes(elsewhere), InternalError);
  EXPECT_THROW(host_bytes_to_write(elsewhere), InternalError);
  EXPECT_THROW(host_numbers<float>(elsewhere), InternalError);
}

TEST(HostBytes, RefuseNumbersOfAnotherDtype) {
  EXPECT_THROW(host_numbers<float>(at::zeros({2}, at::kDouble)), InternalError);
  EXPECT_THROW(host_numbers_to_write<int64_t>(at::zeros({2}, at::kInt)), InternalError);
}

TEST(HostBytes, CarryATextThereAndBack) {
  const std::string text("a\0b", 3);
  EXPECT_EQ(host_text(tensor_of_text(text)), text);
  EXPECT_EQ(host_text(tensor_of_text("")), "");
}

}  // namespace
}  // namespace lockstep::internal
