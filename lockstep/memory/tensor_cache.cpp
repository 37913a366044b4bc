#include "lockstep/memory/tensor_cache.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

namespace lockstep::internal::inline memory {

/// The header in front of each block.
/// Invariant: a block stays its owner's, whichever thread frees it, so that memory does not move from lane to lane.
/// Only hand_over() changes the owner, while the block is idle.
struct alignas(kBlockAlignment) TensorBlock {
  TensorCache* owner;   // null: freed at once
  TensorBlock* next;    // in a list of idle blocks, or of blocks that go to the system
  std::size_t length;   // of the whole block, header included
  uint32_t size_class;  // meaningless without an owner
  bool mapped;          // false: it came from malloc

  void* memory() { return this + 1; }
  static TensorBlock& of(void* memory) { return *(static_cast<TensorBlock*>(memory) - 1); }
};
static_assert(sizeof(TensorBlock) == kBlockAlignment);

namespace {

/// Of this system: 4096 on x86-64, up to 65536 on Arm.
std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// A window ends when the cache has handed out this many times the most that lay idle in it. Blocks that lay idle for
// the whole window go back to the system. Where they are needed again, that costs at most a sixteenth of what the cache
// saved meanwhile.
constexpr std::size_t kWindow = 16;
constexpr std::size_t kSmallestWindow = std::size_t{64} << 20;  // a smaller one costs more than it gives back

constinit thread_local TensorCache* thread_cache = nullptr;

// Bytes of all blocks that have an owner. Written only where the system gives memory or gets it back.
std::atomic<std::size_t> held{0};
// The limits in bytes; `idle_share` is each cache's share of `idle_limit`. They are written under the lock of
// TensorCaches only.
std::atomic<std::size_t> idle_limit{SIZE_MAX};
std::atomic<std::size_t> idle_share{SIZE_MAX};
std::atomic<std::size_t> held_limit{SIZE_MAX};

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

/// Maps `length` bytes that begin where a huge page can, or gives null.
void* map(std::size_t length) {
  const std::size_t wide = length + kLargeBlock;
  void* const raw = mmap(nullptr, wide, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const std::size_t before = round_up(address, kLargeBlock) - address;
  if (before > 0) munmap(raw, before);
  char* const memory = static_cast<char*>(raw) + before;
  munmap(memory + length, wide - before - length);
  madvise(memory, length, MADV_HUGEPAGE);  // a request: without huge pages it is ordinary memory
  return memory;
}

/// A block from the system for `owner`, or null. Where a mapping is refused, malloc is tried, because the system limits
/// the number of mappings.
TensorBlock* fresh_block(uint32_t size_class, TensorCache* owner) {
  std::size_t length = sizeof(TensorBlock) + size_of_class(size_class);
  void* memory = nullptr;
  const bool large = length > kLargeBlock;
  if (large) {
    length = round_up(length, page_bytes());
    memory = map(length);
  }
  const bool mapped = memory != nullptr;
  if (!mapped && posix_memalign(&memory, kBlockAlignment, length) != 0) return nullptr;
  if (owner != nullptr) held.fetch_add(length, std::memory_order_relaxed);
  return new (memory) TensorBlock{owner, nullptr, length, size_class, mapped};
}

void give_to_system(TensorBlock& block) {
  if (block.owner != nullptr) held.fetch_sub(block.length, std::memory_order_relaxed);
  if (block.mapped) {
    munmap(&block, block.length);
  } else {
    std::free(&block);
  }
}

/// Puts a block in front of a list.
void push(TensorBlock*& list, TensorBlock& block) { block.next = std::exchange(list, &block); }

void give_all_to_system(TensorBlock* gone) {
  while (gone != nullptr) give_to_system(*std::exchange(gone, gone->next));
}

}  // namespace

/// All caches: those of lanes, and the one that all threads without a lane share.
class TensorCaches {
 public:
  /// Never destroyed: tensors are freed while the process ends.
  static TensorCaches& all() {
    static TensorCaches& caches = *new TensorCaches;
    return caches;
  }

  TensorCache& shared() { return shared_; }

  TensorCache& acquire() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (unused_.empty()) {
      unused_.reserve(caches_.size() + 1);  // so that retire() cannot fail
      caches_.push_back(new TensorCache);
      unused_.push_back(caches_.back());
    }
    TensorCache& cache = *unused_.back();
    unused_.pop_back();
    set_in_use(cache, true);
    divide();
    return cache;
  }

  void retire(TensorCache& cache) {
    set_in_use(cache, false);
    cache.trim(0);
    const std::lock_guard<std::mutex> lock(mutex_);
    unused_.push_back(&cache);
    divide();
  }

  void set_limits(TensorMemoryLimits limits) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_limit.store(limits.idle, std::memory_order_relaxed);
    held_limit.store(limits.held, std::memory_order_relaxed);
    divide();
  }

  TensorMemoryUse use() {
    TensorMemoryUse sum{.held = held.load(std::memory_order_relaxed)};
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const TensorCache* cache : caches_) sum.idle += cache->idle();
    return sum;
  }

  /// Gives idle blocks back to the system until `bytes` more would stay within the limit on held memory. Idle blocks of
  /// `first` go before those of other caches.
  void make_room(std::size_t bytes, TensorCache& first) {
    const std::size_t limit = held_limit.load(std::memory_order_relaxed);
    const auto too_much = [&] {
      const std::size_t with = held.load(std::memory_order_relaxed) + bytes;
      return with > limit ? with - limit : 0;
    };
    if (too_much() == 0) return;
    const auto shrink = [&](TensorCache& cache) {
      const std::size_t idle = cache.idle();
      cache.trim(idle - std::min(idle, too_much()));
    };
    shrink(first);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (TensorCache* cache : caches_) shrink(*cache);
  }

  void release_idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (TensorCache* cache : caches_) cache->trim(0);
  }

  TensorBlock* block(uint32_t size_class, TensorCache* owner) {
    if (owner == nullptr) {
      TensorBlock* const block = fresh_block(size_class, nullptr);
      if (block != nullptr) return block;
    } else {
      if (TensorBlock* const idle = owner->take(size_class)) return idle;
      // Lanes take blocks that threads without a cache left idle, such as each replica's initial weights. Invariant:
      // blocks never move the other way, or between lanes; otherwise they would move for ever.
      if (owner != &shared_ && size_of_class(size_class) >= kLargeBlock) {
        if (TensorBlock* const idle = shared_.hand_over(size_class, *owner)) return idle;
      }
      make_room(size_of_class(size_class), *owner);
      if (TensorBlock* const block = fresh_block(size_class, owner)) return block;
    }
    release_idle();
    return fresh_block(size_class, owner);
  }

  static void free(TensorBlock& block) {
    if (block.owner == nullptr) {
      give_to_system(block);
    } else {
      block.owner->give(block);
    }
  }

 private:
  TensorCaches() {
    set_in_use(shared_, true);
    // A child that is forked while another thread holds a lock would find it locked for ever.
    pthread_atfork([] { all().lock_all(); }, [] { all().unlock_all(); }, [] { all().unlock_all(); });
  }

  void lock_all() {
    mutex_.lock();
    for (TensorCache* cache : caches_) cache->mutex_.lock();
  }
  void unlock_all() {
    for (TensorCache* cache : caches_) cache->mutex_.unlock();
    mutex_.unlock();
  }

  static void set_in_use(TensorCache& cache, bool in_use) {
    const std::lock_guard<std::mutex> lock(cache.mutex_);
    cache.in_use_ = in_use;
  }

  /// Called with the lock held: gives each cache in use an equal share of what may lie idle.
  void divide() {
    const std::size_t limit = idle_limit.load(std::memory_order_relaxed);
    const std::size_t share = limit == SIZE_MAX ? limit : limit / (caches_.size() - unused_.size());
    if (idle_share.exchange(share, std::memory_order_relaxed) <= share) return;
    for (TensorCache* cache : caches_) cache->trim(share);
  }

  std::mutex mutex_;
  TensorCache shared_;
  // Guarded by mutex_. Invariant: a thread that takes mutex_ and the lock of a cache takes mutex_ first.
  std::vector<TensorCache*> caches_{&shared_};
  std::vector<TensorCache*> unused_;
};

TensorCache& TensorCache::acquire() { return TensorCaches::all().acquire(); }

void TensorCache::release(TensorCache& cache) { TensorCaches::all().retire(cache); }

std::size_t TensorCache::idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return idle_;
}

TensorBlock* TensorCache::take(uint32_t size_class) {
  TensorBlock* gone = nullptr;
  TensorBlock* block = nullptr;
  std::size_t window = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    served_ += size_of_class(size_class);
    if (window_is_over()) {
      window = served_;
      end_window(gone);
    }
    Bin& bin = bins_[size_class];
    bin.last_used = ++clock_;
    if (bin.count > 0) block = pop(bin);
  }
  give_all_to_system(gone);
  // Threads without a cache may never allocate again. So what lanes hand out moves the window of their cache too.
  TensorCache& shared = TensorCaches::all().shared();
  if (window > 0 && this != &shared) shared.advance(window);
  return block;
}

TensorBlock* TensorCache::hand_over(uint32_t size_class, TensorCache& to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Bin& bin = bins_[size_class];
  if (bin.count == 0) return nullptr;
  TensorBlock* const block = pop(bin);
  block->owner = &to;
  return block;
}

void TensorCache::advance(std::size_t served) {
  TensorBlock* gone = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    served_ += served;
    if (window_is_over()) end_window(gone);
  }
  give_all_to_system(gone);
}

void TensorCache::give(TensorBlock& block) {
  TensorBlock* gone = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t share = idle_share.load(std::memory_order_relaxed);
    if (!in_use_ || block.length > share) {
      push(gone, block);
    } else {
      Bin& bin = bins_[block.size_class];
      bin.last_used = ++clock_;
      push(bin.idle, block);
      ++bin.count;
      idle_ += block.length;
      if (idle_ > share) trim_locked(share, gone);
      most_idle_ = std::max(most_idle_, idle_);
    }
  }
  give_all_to_system(gone);
}

void TensorCache::trim(std::size_t idle) {
  TensorBlock* gone = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    trim_locked(idle, gone);
  }
  give_all_to_system(gone);
}

TensorBlock* TensorCache::pop(Bin& bin) {
  TensorBlock* const block = bin.idle;
  bin.idle = block->next;
  bin.least = std::min(bin.least, --bin.count);
  idle_ -= block->length;
  return block;
}

void TensorCache::trim_locked(std::size_t idle, TensorBlock*& gone) {
  while (idle_ > idle) {
    Bin* oldest = nullptr;
    for (Bin& bin : bins_) {
      if (bin.count > 0 && (oldest == nullptr || bin.last_used < oldest->last_used)) oldest = &bin;
    }
    while (idle_ > idle && oldest->count > 0) push(gone, *pop(*oldest));
  }
}

bool TensorCache::window_is_over() const {
  return served_ / kWindow >= std::max(most_idle_, kSmallestWindow / kWindow);
}

void TensorCache::end_window(TensorBlock*& gone) {
  for (Bin& bin : bins_) {
    for (uint32_t stale = bin.least; stale > 0; --stale) push(gone, *pop(bin));
    bin.least = bin.count;
  }
  most_idle_ = idle_;
  served_ = 0;
}

TensorCache* exchange_thread_cache(TensorCache* cache) noexcept { return std::exchange(thread_cache, cache); }

void* allocate_tensor_memory(std::size_t bytes) noexcept {
  if (bytes == 0 || bytes > kLargestBlock) return nullptr;
  TensorCaches& caches = TensorCaches::all();
  const uint32_t size_class = size_class_of(bytes);
  TensorCache* cache = thread_cache;
  if (cache == nullptr && size_of_class(size_class) >= kLargeBlock) cache = &caches.shared();
  TensorBlock* const block = caches.block(size_class, cache);
  return block != nullptr ? block->memory() : nullptr;
}

void free_tensor_memory(void* memory) noexcept {
  if (memory != nullptr) TensorCaches::free(TensorBlock::of(memory));
}

void set_tensor_memory_limits(TensorMemoryLimits limits) { TensorCaches::all().set_limits(limits); }

TensorMemoryLimits tensor_memory_limits() {
  return {.idle = idle_limit.load(std::memory_order_relaxed), .held = held_limit.load(std::memory_order_relaxed)};
}

TensorMemoryUse tensor_memory_use() { return TensorCaches::all().use(); }

void release_idle_tensor_memory() noexcept { TensorCaches::all().release_idle(); }

}  // namespace lockstep::internal::memory
