// Memory for tensors that is kept and reused: blocks in size classes, and one cache of idle blocks for each lane.
// Nothing here knows LibTorch; memory/tensor_allocator.h puts it to use. docs/memory.md says what it is for.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace lockstep::internal {

/// What every block is aligned to, and the length of the header in front of it.
inline constexpr std::size_t kBlockAlignment = 64;
/// Blocks of this many bytes and more are mapped on their own, in huge pages.
inline constexpr std::size_t kLargeBlock = std::size_t{2} << 20;
/// Nothing larger is tried.
inline constexpr std::size_t kLargestBlock = std::size_t{1} << 47;

// Size classes: every 64 bytes up to 512, then eight to each doubling. So less than an eighth of a block is unused.

/// The class of blocks that `bytes` are given, 1 <= bytes <= kLargestBlock.
constexpr uint32_t size_class_of(std::size_t bytes) {
  const std::size_t last = bytes - 1;
  if (last < 512) return static_cast<uint32_t>(last / 64);
  const int doubling = std::bit_width(last) - 1;
  return static_cast<uint32_t>(8 * (doubling - 9) + static_cast<int>(last >> (doubling - 3)));
}

/// How many bytes a block of the class has.
constexpr std::size_t size_of_class(uint32_t size_class) {
  if (size_class < 8) return 64 * (std::size_t{size_class} + 1);
  return (std::size_t{size_class} % 8 + 9) << (size_class / 8 + 5);
}

inline constexpr uint32_t kSizeClasses = size_class_of(kLargestBlock) + 1;

struct TensorBlock;

/// The idle blocks of one lane. Its lock is there for the rare moments when another thread than the lane's frees a
/// block, or when memory runs out; no two lanes share one.
class alignas(64) TensorCache {
 public:
  /// A cache that nobody uses, or a new one. Any thread.
  static TensorCache& acquire();
  /// Gives back what is idle; blocks still in use go to the system when they are freed. A cache is never destroyed,
  /// because those blocks name it. No thread may still have it (exchange_thread_cache).
  static void release(TensorCache& cache);

  /// Bytes that lie idle here, headers included. Any thread.
  std::size_t idle() const;

 private:
  friend class TensorCaches;  // all of them

  struct Bin {
    TensorBlock* idle = nullptr;
    uint32_t count = 0;
    uint32_t least = 0;      // the fewest that lay idle since the window began
    uint64_t last_used = 0;  // by clock_
  };

  /// An idle block of the class, or null.
  TensorBlock* take(uint32_t size_class);
  /// The same for another cache, which the block now belongs to.
  TensorBlock* hand_over(uint32_t size_class, TensorCache& to);
  void give(TensorBlock& block);
  /// Moves the window on: other caches have handed out so many bytes.
  void advance(std::size_t served);
  /// Gives blocks back to the system, of the class first that was not used for longest, until at most `idle` bytes
  /// stay.
  void trim(std::size_t idle);

  // With the lock held; what goes is put on the list `gone`, for the system once the lock is free again.
  TensorBlock* pop(Bin& bin);
  bool window_is_over() const;
  void trim_locked(std::size_t idle, TensorBlock*& gone);
  void end_window(TensorBlock*& gone);

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  bool in_use_ = false;
  std::size_t idle_ = 0;
  std::size_t most_idle_ = 0;  // since the window began
  std::size_t served_ = 0;     // bytes handed out since the window began
  uint64_t clock_ = 0;
  std::array<Bin, kSizeClasses> bins_;
};

/// Makes `cache` the one that this thread's allocations use, and gives the one before. Null, as at first, means none:
/// then blocks below kLargeBlock come from malloc, and larger ones from a cache that all such threads share.
TensorCache* exchange_thread_cache(TensorCache* cache) noexcept;

/// A lane's cache, for as long as the lane lives.
class TensorCacheLease {
 public:
  TensorCacheLease() : cache_(TensorCache::acquire()) {}
  ~TensorCacheLease() { TensorCache::release(cache_); }
  TensorCacheLease(const TensorCacheLease&) = delete;
  TensorCacheLease& operator=(const TensorCacheLease&) = delete;

  TensorCache& cache() const { return cache_; }

 private:
  TensorCache& cache_;
};

/// Has this thread use a cache until the end of the scope.
class ThreadCacheScope {
 public:
  explicit ThreadCacheScope(TensorCache& cache) : before_(exchange_thread_cache(&cache)) {}
  ~ThreadCacheScope() { exchange_thread_cache(before_); }
  ThreadCacheScope(const ThreadCacheScope&) = delete;
  ThreadCacheScope& operator=(const ThreadCacheScope&) = delete;

 private:
  TensorCache* const before_;
};

/// Aligned to kBlockAlignment; null for 0 bytes and where there is no memory, even with all that was idle given back.
void* allocate_tensor_memory(std::size_t bytes) noexcept;
/// Frees what allocate_tensor_memory gave, or null. Any thread, at any time, also while the process ends.
void free_tensor_memory(void* memory) noexcept;

/// `idle`: the most that all caches together keep idle, each an equal share of it. `held`: before blocks, idle ones
/// included, would take more than this, idle ones go back. Both at once, from any thread.
struct TensorMemoryLimits {
  std::size_t idle = SIZE_MAX;
  std::size_t held = SIZE_MAX;
};
void set_tensor_memory_limits(TensorMemoryLimits limits);
TensorMemoryLimits tensor_memory_limits();

/// What all caches hold. Blocks below kLargeBlock of threads without a cache are malloc's, and not counted.
struct TensorMemoryUse {
  std::size_t held = 0;  // bytes of all blocks, in use and idle
  std::size_t idle = 0;
};
TensorMemoryUse tensor_memory_use();

/// Gives everything idle back to the system.
void release_idle_tensor_memory() noexcept;

}  // namespace lockstep::internal
