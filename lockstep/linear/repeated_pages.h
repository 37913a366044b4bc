// A long range of addresses that shows a short piece of memory over and over.
#pragma once

#include <cstddef>

namespace lockstep::internal {

/// A range of addresses whose byte i + kPeriod is the same byte as byte i: a large matrix of test numbers that takes
/// one megabyte, and whose pages stay in the caches. The rows of a matrix differ, unless a row is as long as a period
/// or a multiple of it. The owner destroys it after the last use.
class RepeatedPages {
 public:
  /// In bytes: a prime number of pages, so that rows of any usual length begin at different places of it.
  static constexpr std::size_t kPeriod = std::size_t{251} * 4096;

  /// At least `bytes` bytes, all 0. Throws std::bad_alloc where the system gives no memory or no addresses.
  explicit RepeatedPages(std::size_t bytes);
  ~RepeatedPages();
  RepeatedPages(const RepeatedPages&) = delete;
  RepeatedPages& operator=(const RepeatedPages&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t length_ = 0;
};

}  // namespace lockstep::internal
