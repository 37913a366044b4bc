// Memory for tensors that is kept and reused: blocks in size classes, and one cache of idle blocks for each lane.
// Nothing here knows LibTorch; memory/tensor_allocator.h connects it with LibTorch. docs/memory.md explains it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace lockstep::internal::inline memory {

/// The alignment of every block, and the length of the header in front of it.
inline constexpr std::size_t kBlockAlignment = 64;
/// Blocks of this many bytes and more are mapped on their own, in huge pages.
inline constexpr std::size_t kLargeBlock = std::size_t{2} << 20;
/// No larger block is tried.
inline constexpr std::size_t kLargestBlock = std::size_t{1} << 47;

// Size classes: every 64 bytes up to 512, then eight to each doubling. So less than an eighth of a block is unused.

/// The class of the block that holds `bytes` bytes; 1 <= bytes <= kLargestBlock.
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

/// The idle blocks of one lane; one more cache is shared by all threads without a lane. The lock of a lane's cache is
/// needed only in the rare moments when a thread outside of the lane frees a block, or when memory runs out. No two
/// lanes share a cache.
class alignas(64) TensorCache {
 public:
  /// Gives a cache that no lane uses, or a new one. Any thread may call.
  static TensorCache& acquire();
  /// Gives the idle blocks of `cache` back to the system; blocks that are still in use go back when they are freed. A
  /// cache is never destroyed, because those blocks refer to it. No thread may still use it (exchange_thread_cache).
  static void release(TensorCache& cache);

  /// Bytes that lie idle here, headers included. Any thread may call.
  std::size_t idle() const;

 private:
  friend class TensorCaches;  // the set of all caches

  struct Bin {
    TensorBlock* idle = nullptr;
    uint32_t count = 0;
    uint32_t least = 0;      // the fewest that lay idle since the window began. Invariant: least <= count
    uint64_t last_used = 0;  // by clock_
  };

  /// An idle block of the class, or null.
  TensorBlock* take(uint32_t size_class);
  /// The same for another cache: the block belongs to `to` from now on.
  TensorBlock* hand_over(uint32_t size_class, TensorCache& to);
  void give(TensorBlock& block);
  /// Counts `served` bytes that another cache has handed out as if this one had, so that its window ends too.
  void advance(std::size_t served);
  /// Gives blocks back to the system until at most `idle` bytes stay. The class that was not used for longest goes
  /// first.
  void trim(std::size_t idle);

  // Called with the lock held. Blocks that go are put on the list `gone`; the caller gives them to the system after it
  // has released the lock.
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

/// Makes the calling thread allocate from `cache`, and returns the cache that it used before. Null, which every thread
/// begins with, means no cache: then blocks below kLargeBlock come from malloc, and larger ones from a cache that all
/// such threads share.
TensorCache* exchange_thread_cache(TensorCache* cache) noexcept;

/// A lane's cache, for as long as the lease lives.
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

/// Makes the calling thread use a cache until the end of the scope.
class ThreadCacheScope {
 public:
  explicit ThreadCacheScope(TensorCache& cache) : before_(exchange_thread_cache(&cache)) {}
  ~ThreadCacheScope() { exchange_thread_cache(before_); }
  ThreadCacheScope(const ThreadCacheScope&) = delete;
  ThreadCacheScope& operator=(const ThreadCacheScope&) = delete;

 private:
  TensorCache* const before_;
};

/// `bytes` bytes of memory, aligned to kBlockAlignment. Null for 0 bytes, for more than kLargestBlock, and where the
/// system has no memory even after all idle blocks went back to it. Any thread may call.
void* allocate_tensor_memory(std::size_t bytes) noexcept;
/// Frees memory that allocate_tensor_memory gave; null is allowed. Any thread may call at any time, also while the
/// process ends.
void free_tensor_memory(void* memory) noexcept;

/// `idle` is the most that all caches together keep idle; each cache in use has an equal share of it. `held` is the
/// most that all blocks take, idle ones included, before idle ones go back to the system. Both are in bytes and are set
/// at the same time, from any thread.
struct TensorMemoryLimits {
  std::size_t idle = SIZE_MAX;
  std::size_t held = SIZE_MAX;
};
void set_tensor_memory_limits(TensorMemoryLimits limits);
TensorMemoryLimits tensor_memory_limits();

/// What all caches hold. Blocks below kLargeBlock of threads without a cache come from malloc and are not counted.
struct TensorMemoryUse {
  std::size_t held = 0;  // bytes of all blocks, in use and idle
  std::size_t idle = 0;
};
TensorMemoryUse tensor_memory_use();

/// Gives all idle blocks back to the system. Any thread may call.
void release_idle_tensor_memory() noexcept;

}  // namespace lockstep::internal::memory
