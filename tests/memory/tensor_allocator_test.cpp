#include "lockstep/memory/tensor_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/core/torch_compat.h"
#include "lockstep/memory/tensor_cache.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep::internal {
namespace {

constexpr int64_t kLargeNumel = int64_t{1} << 20;  // 4 MiB of floats

TEST(TensorCacheSetting, IsReadFromItsText) {
  EXPECT_TRUE(tensor_cache_setting("on").on);
  EXPECT_EQ(tensor_cache_setting("on").idle_limit, std::nullopt);
  EXPECT_FALSE(tensor_cache_setting("off").on);
  EXPECT_FALSE(tensor_cache_setting("0").on);
  EXPECT_EQ(tensor_cache_setting("1000").idle_limit, 1000u);
  EXPECT_EQ(tensor_cache_setting("3K").idle_limit, 3u << 10);
  EXPECT_EQ(tensor_cache_setting("512M").idle_limit, 512u << 20);
  EXPECT_EQ(tensor_cache_setting("8G").idle_limit, std::size_t{8} << 30);
}

TEST(TensorCacheSetting, IsOnByDefaultButNotForSanitizers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kExpected = false;
#else
  constexpr bool kExpected = true;
#endif
  EXPECT_EQ(tensor_cache_setting(""), TensorCacheSetting{.on = kExpected});
}

TEST(TensorCacheSetting, SaysWhatIsAllowedWhereItIsNot) {
  for (const char* text :
       {"yes", "-1", "1.5G", "12T", "G", "8GB", " 8G", "ON", "99999999999999999999", "99999999999999G"}) {
    const std::string quoted = "'" + std::string(text) + "'";
    lockstep::testing::expect_error<UsageError>([&] { tensor_cache_setting(text); }, "LS-ENVIRONMENT",
                                                {"LOCKSTEP_TENSOR_CACHE", quoted});
  }
}

/// With the allocator installed, whatever the environment says.
class TensorAllocatorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!before_) before_ = std::make_unique<at::Tensor>(at::full({kLargeNumel}, 3.0f));
    setenv("LOCKSTEP_TENSOR_CACHE", "on", 1);
    install_tensor_allocator();
  }
  static void TearDownTestSuite() { before_.reset(); }

  /// From before the allocator was installed.
  static at::Tensor& before() { return *before_; }

 private:
  static inline std::unique_ptr<at::Tensor> before_;
};

TEST_F(TensorAllocatorTest, SaysWhatItDoes) {
  const std::string text = tensor_allocator_description();
  EXPECT_NE(text.find("kept for reuse, at most"), std::string::npos) << text;
  EXPECT_NE(text.find("LOCKSTEP_TENSOR_CACHE=off"), std::string::npos) << text;
}

TEST_F(TensorAllocatorTest, TensorsTakeTheMemoryOfTensorsBefore) {
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  for (const int64_t numel : {int64_t{1}, int64_t{5000}, kLargeNumel}) {
    const void* first = at::empty({numel}).data_ptr();
    EXPECT_EQ(at::empty({numel}).data_ptr(), first);
  }
}

TEST_F(TensorAllocatorTest, TensorsFromBeforeLiveOnAndMixWithOthers) {
  at::Tensor sum = before() + at::ones({kLargeNumel});
  EXPECT_EQ(sum.sum().item<float>(), 4.0f * kLargeNumel);
  at::Tensor old = before().clone();
  std::swap(old, sum);
  std::thread([tensor = std::move(sum)]() mutable { tensor.reset(); }).join();
  at::Tensor grown = before();
  grown.resize_({2 * kLargeNumel});
  EXPECT_EQ(grown[0].item<float>(), 3.0f);
  grown.resize_({kLargeNumel});
}

TEST_F(TensorAllocatorTest, TensorsOutliveTheirThread) {
  at::Tensor tensor;
  std::thread([&] {
    const TensorCacheLease lane;
    const ThreadCacheScope scope(lane.cache());
    tensor = at::ones({kLargeNumel});
  }).join();
  EXPECT_EQ(tensor.sum().item<float>(), static_cast<float>(kLargeNumel));
}

TEST_F(TensorAllocatorTest, EmptyTensorsHaveNoMemory) {
  EXPECT_EQ(at::empty({0}).data_ptr(), nullptr);
  EXPECT_EQ(c10::GetCPUAllocator()->allocate(0).get(), nullptr);
}

TEST_F(TensorAllocatorTest, StoragesCanBeResizedTakenApartAndWrapped) {
  at::Tensor tensor = at::arange(1000, at::kFloat);
  tensor.resize_({300000});
  EXPECT_EQ(tensor[999].item<float>(), 999.0f);
  tensor.resize_({2 * kLargeNumel});
  EXPECT_EQ(tensor[999].item<float>(), 999.0f);

  at::DataPtr taken = tensor.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, at::kCPU));
  EXPECT_EQ(static_cast<float*>(taken.get())[999], 999.0f);
  EXPECT_EQ(taken.get(), taken.get_context());
  {
    const at::Tensor view = at::from_blob(taken.get(), {1000}, at::kFloat);
    EXPECT_EQ(view.sum().item<float>(), 499500.0f);
  }
  taken.clear();

  void* const raw = c10::GetCPUAllocator()->raw_allocate(5000);
  ASSERT_NE(raw, nullptr);
  c10::GetCPUAllocator()->raw_deallocate(raw);
}

TEST_F(TensorAllocatorTest, TooLargeIsLibTorchsOwnError) {
  const auto message = lockstep::testing::message_from<c10::Error>([] { at::empty({int64_t{1} << 61}, at::kByte); });
  EXPECT_NE(message.find("allocate"), std::string::npos) << message;
  EXPECT_NE(message.find("2305843009213693952"), std::string::npos) << message;
  EXPECT_EQ(at::ones({10}).sum().item<float>(), 10.0f);
}

/// Stands for the profiler.
struct Counter : c10::MemoryReportingInfoBase {
  // The numbers' types differ between versions of LibTorch: one of the two overrides.
  void reportMemoryUsage(void* memory, int64_t bytes, int64_t, int64_t, c10::Device) { count(memory, bytes); }
  void reportMemoryUsage(void* memory, int64_t bytes, std::size_t, std::size_t, c10::Device) { count(memory, bytes); }
  bool memoryProfilingEnabled() const override { return true; }

  void count(void* memory, int64_t bytes) { sums[memory] += bytes; }
  std::map<void*, int64_t> sums;
};

TEST_F(TensorAllocatorTest, TellsTheProfilerOfEachTensor) {
  const auto counter = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  void* address = nullptr;
  {
    const at::Tensor tensor = at::empty({1234});
    address = tensor.data_ptr();
    EXPECT_EQ(counter->sums[address], 4 * 1234);
  }
  EXPECT_EQ(counter->sums[address], 0);
}

/// A program's own allocator.
class Own final : public HostAllocator {
 public:
  c10::DataPtr new_block(std::size_t bytes) const override {
    void* const memory = std::malloc(bytes);
    return {memory, memory, &std::free, at::Device(at::kCPU)};
  }
};

/// Prints the description, and ends the process: for tests of what happens once in it.
[[noreturn]] void describe_and_exit() {
  std::fputs(tensor_allocator_description().c_str(), stderr);
  std::_Exit(0);
}

class TensorAllocatorDeathTest : public ::testing::Test {
 protected:
  TensorAllocatorDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(TensorAllocatorDeathTest, AProgramsOwnAllocatorStays) {
  const auto body = [] {
    setenv("LOCKSTEP_TENSOR_CACHE", "on", 1);
    Own& own = *new Own;
    c10::SetCPUAllocator(&own, 7);
    install_tensor_allocator();
    if (c10::GetCPUAllocator() != &own) std::_Exit(1);
    describe_and_exit();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "the allocator that this program set before the first strategy");
}

TEST_F(TensorAllocatorDeathTest, AnAllocatorThatTheProgramSetsLaterTakesOver) {
  const auto body = [] {
    setenv("LOCKSTEP_TENSOR_CACHE", "on", 1);
    install_tensor_allocator();
    const at::Tensor ours = at::ones({kLargeNumel});
    c10::SetCPUAllocator(new Own);
    if ((ours + 1).sum().item<float>() != 2.0f * kLargeNumel) std::_Exit(1);
    describe_and_exit();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "the allocator that this program set after the first strategy");
}

TEST_F(TensorAllocatorDeathTest, OffLeavesLibTorchsAllocator) {
  const auto body = [] {
    setenv("LOCKSTEP_TENSOR_CACHE", "off", 1);
    install_tensor_allocator();
    if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) std::_Exit(1);
    describe_and_exit();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "LibTorch's own allocator, by LOCKSTEP_TENSOR_CACHE");
}

TEST_F(TensorAllocatorDeathTest, AWrongValueRefusesEveryStrategy) {
  const auto body = [] {
    setenv("LOCKSTEP_TENSOR_CACHE", "lots", 1);
    for (int time = 0; time < 2; ++time) {
      lockstep::testing::expect_error<UsageError>([] { const OneDeviceStrategy strategy; }, "LS-ENVIRONMENT",
                                                  {"LOCKSTEP_TENSOR_CACHE", "'lots'"});
    }
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

TEST_F(TensorAllocatorDeathTest, TensorsMayBeFreedWhileTheProcessEnds) {
  const auto body = [] {
    setenv("LOCKSTEP_TENSOR_CACHE", "on", 1);
    static at::Tensor first;  // destroyed after all that is made below
    OneDeviceStrategy strategy;
    static at::Tensor second;
    first = at::ones({kLargeNumel});
    strategy.run([](ReplicaContext&) { second = at::ones({100}); });
    std::exit(0);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::internal
