#include "lockstep/memory/tensor_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/core/switches.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/memory/first_tensor.h"
#include "lockstep/memory/memory_limit.h"
#include "lockstep/memory/tensor_cache.h"

namespace lockstep::internal::inline memory {

namespace {

constexpr const char* kVariable = "LOCKSTEP_TENSOR_CACHE";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

/// Throws what LibTorch's own allocator throws, in its words.
[[noreturn]] void throw_out_of_memory(std::size_t bytes) {
  c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
  c10::free_cpu(c10::alloc_cpu(bytes));  // throws, unless another thread has freed memory meanwhile
  TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes, " bytes.");
}

class TensorAllocator final : public HostAllocator {
 public:
  c10::DataPtr new_block(std::size_t bytes) const override {
    void* const memory = allocate_tensor_memory(bytes);
    if (memory == nullptr && bytes != 0) throw_out_of_memory(bytes);
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, &free_block, at::Device(at::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

 private:
  static void free_block(void* memory) {
    if (memory == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(memory);
    free_tensor_memory(memory);
  }
};

/// The outcome of the installation.
enum class State { kNotTried, kInstalled, kOff, kOtherStays };
std::atomic<State> state{State::kNotTried};

/// Never destroyed: tensors may be resized while the process ends.
TensorAllocator& allocator() {
  static TensorAllocator& instance = *new TensorAllocator;
  return instance;
}

State install() {
  const TensorCacheSetting setting = tensor_cache_setting(switch_text(kVariable));
  // The first strategy has warmed up.
  if (c10::GetCPUAllocator() == first_tensor_allocator()) c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), 0);
  if (!setting.on) return State::kOff;
  if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return State::kOtherStays;
  // A model that fits leaves far less than half of the memory idle. Three quarters leave room for memory that is not a
  // tensor's, so that the system never ends a program because of idle memory.
  const std::size_t memory = memory_limit();
  set_tensor_memory_limits({.idle = setting.idle_limit.value_or(memory / 2), .held = memory / 4 * 3});
  // With LibTorch's lowest priority, so that an allocator which the program sets later takes over.
  c10::SetCPUAllocator(&allocator(), 0);
  return c10::GetCPUAllocator() == &allocator() ? State::kInstalled : State::kOtherStays;
}

std::string bytes_text(std::size_t bytes) {
  constexpr double kMebi = 1 << 20;
  const auto value = static_cast<double>(bytes);
  return value >= 1024 * kMebi ? fmt::format("{:.1f} GiB", value / (1024 * kMebi))
                               : fmt::format("{:.1f} MiB", value / kMebi);
}

}  // namespace

TensorCacheSetting tensor_cache_setting(std::string_view value) {
  if (value.empty()) return {.on = !kSanitized};
  if (value == "on") return {};
  if (value == "off") return {.on = false};
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const std::string_view suffix = value.substr(static_cast<std::size_t>(end - value.data()));
  const int shift = suffix.empty() ? 0 : suffix == "K" ? 10 : suffix == "M" ? 20 : suffix == "G" ? 30 : -1;
  if (error != std::errc{} || shift < 0 || number > (SIZE_MAX >> shift)) {
    throw UsageError("LS-ENVIRONMENT", fmt::format("{} is '{}'", kVariable, value),
                     "set it to off, on, or the most that may be kept idle, in bytes or with K, M or G, such as 512M");
  }
  if (number == 0) return {.on = false};
  return {.on = true, .idle_limit = static_cast<std::size_t>(number) << shift};
}

void install_tensor_allocator() {
  warm_up_math();  // what is installed does not do it
  // Where install() throws, the next call tries again, so that every strategy of a program with a wrong value is
  // refused.
  static const State once = [] {
    const State result = install();
    state.store(result, std::memory_order_relaxed);
    return result;
  }();
  (void)once;
}

std::string tensor_allocator_description() {
  switch (state.load(std::memory_order_relaxed)) {
    case State::kNotTried: return "tensor memory: LibTorch's own allocator, until the first strategy is made";
    case State::kOff:
      return fmt::format("tensor memory: LibTorch's own allocator{}", !switch_text(kVariable).empty()
                                                                          ? fmt::format(", by {}", kVariable)
                                                                          : "; this is a sanitizer's build");
    case State::kOtherStays: return "tensor memory: the allocator that this program set before the first strategy";
    case State::kInstalled: break;
  }
  if (c10::GetCPUAllocator() != &allocator())
    return "tensor memory: the allocator that this program set after the first strategy";
  return fmt::format("tensor memory: kept for reuse, at most {} idle; {}=off keeps none",
                     bytes_text(tensor_memory_limits().idle), kVariable);
}

}  // namespace lockstep::internal::memory
