// For tests of what a program does where memory is short: one allocation of chosen threads fails.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/core/torch_compat.h"

namespace lockstep::testing {

/// Counts allocations of the threads for which a Scope lives, and lets one of them fail: by `operator new`, which a
/// program has to replace (tests/strategy/step_memory_test.cpp), and by LibTorch's allocator of tensors while a
/// ScarceTensors lives.
class ScarceMemory {
 public:
  /// The n-th allocation fails, counted from 1, and no other one.
  explicit ScarceMemory(int64_t n) : failing_(n) {}

  bool has_failed() const { return count_.load() >= failing_; }

  /// While it lives, the calling thread's allocations are counted by `memory`, or not at all where that is null.
  class Scope {
   public:
    explicit Scope(ScarceMemory* memory) : outer_(current_) { current_ = memory; }
    ~Scope() { current_ = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ScarceMemory* const outer_;
  };

  /// Called for each allocation: whether it fails.
  static bool fails() noexcept { return current_ != nullptr && ++current_->count_ == current_->failing_; }

 private:
  inline static constinit thread_local ScarceMemory* current_ = nullptr;
  const int64_t failing_;
  std::atomic<int64_t> count_{0};
};

/// While it lives, tensors' memory is scarce too. Make a strategy before, so that the library's allocator is there.
class ScarceTensors {
 public:
  ScarceTensors() : inner_(c10::GetCPUAllocator()) {
    static Allocator& instance = *new Allocator(*inner_);  // never destroyed: tensors know their allocator
    c10::SetCPUAllocator(&instance, kPriority);
  }
  ~ScarceTensors() { c10::SetCPUAllocator(inner_, kPriority); }
  ScarceTensors(const ScarceTensors&) = delete;
  ScarceTensors& operator=(const ScarceTensors&) = delete;

 private:
  static constexpr uint8_t kPriority = 255;
  class Allocator final : public internal::HostAllocator {
   public:
    explicit Allocator(c10::Allocator& inner) : inner_(inner) {}
    c10::DataPtr new_block(std::size_t bytes) const override {
      TORCH_CHECK(!ScarceMemory::fails(), "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
                  " bytes.");
      return inner_.allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }

   private:
    c10::Allocator& inner_;
  };
  c10::Allocator* const inner_;
};

}  // namespace lockstep::testing
