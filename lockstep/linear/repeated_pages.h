// A long range of addresses most of which shows one short piece of memory over and over.
#pragma once

#include <cstddef>

namespace lockstep::internal::inline linear {

/// A range of addresses whose byte i + kPeriod is the same byte as byte i: a large matrix of test numbers that takes
/// one megabyte, and whose pages stay in the caches. The rows of a matrix differ, unless a row is as long as a period
/// or a multiple of it. Some periods may be excepted, and have memory of their own. The owner destroys it after the
/// last use.
class RepeatedPages {
 public:
  /// In bytes: a prime number of pages, so that rows of any usual length begin at different places of it.
  static constexpr std::size_t kPeriod = std::size_t{251} * 4096;

  /// At least `bytes` bytes, all 0. With a `spacing`, each period whose index is a multiple of it has memory of its
  /// own, and so has the last one. Throws std::bad_alloc where the system gives no memory or no addresses.
  explicit RepeatedPages(std::size_t bytes, std::size_t spacing = 0);
  ~RepeatedPages();
  RepeatedPages(const RepeatedPages&) = delete;
  RepeatedPages& operator=(const RepeatedPages&) = delete;

  void* data() const { return data_; }
  std::size_t periods() const { return length_ / kPeriod; }
  /// Whether period i has memory of its own.
  bool is_own(std::size_t i) const { return spacing_ > 0 && (i % spacing_ == 0 || i + 1 == periods()); }

 private:
  const std::size_t spacing_;
  void* data_ = nullptr;
  std::size_t length_ = 0;
};

}  // namespace lockstep::internal::linear
