#include "lockstep/optim/product_order.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/factors.h"
#include "lockstep/replica/random_streams.h"

namespace lockstep::internal {

namespace {

/// Numbers of both signs and many sizes, zeros of both signs, and numbers whose products underflow; the same in every
/// process. They begin `offset` elements behind an address to which LibTorch aligns tensors.
at::Tensor test_values(int64_t samples, int64_t size, int64_t offset, double phase) {
  at::Tensor values = at::arange(offset + samples * size, at::kFloat).mul_(0.7390851).add_(phase).sin_().mul_(1.0 / 3);
  values.masked_fill_(values.abs() < 0.05, 0);
  values.masked_fill_((values > 0.3).logical_and_(values < 0.31), -0.0);
  at::Tensor result = values.narrow(0, offset, samples * size).view({samples, size});
  if (size > 3) result.slice(1, 3, size, 7).mul_(1e-30);
  return result;
}

bool have_same_bits(const at::Tensor& left, const at::Tensor& right) {
  constexpr int64_t kAtATime = 1 << 12;
  const at::Tensor theirs = left.t().mm(right);
  if (theirs.scalar_type() != at::kFloat) return false;
  const Factors factors(left, right);
  FactorBlocks ours(4 * kAtATime);
  const auto* const values = static_cast<const float*>(address_of(theirs));
  for (int64_t offset = 0; offset < theirs.numel(); offset += kAtATime) {
    const int64_t count = std::min(kAtATime, theirs.numel() - offset);
    const float* const block = ours.block(factors, offset, count);
    if (std::memcmp(block, values + offset, static_cast<std::size_t>(count) * sizeof(float)) != 0) return false;
  }
  return true;
}

bool compare_order(int64_t samples, int64_t rows, int64_t columns) {
  // Another order gives the same bits for many elements, so small matrices are compared more than once. The order of
  // some products depends on addresses, so these differ.
  constexpr int64_t kEnough = 1 << 15;
  constexpr int64_t kTooFew = 64;  // would be compared more than 512 times
  if (rows * columns < kTooFew) return false;
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard below(kStepKey);
  constexpr int64_t kLarge = 1 << 20;  // one trial, with the less usual addresses
  for (int64_t trial = rows * columns < kLarge ? 0 : 1; trial < 2 || trial * rows * columns < kEnough; ++trial) {
    const at::Tensor left = test_values(samples, rows, trial * 5 % 16, 0.1 + static_cast<double>(trial));
    const at::Tensor right = test_values(samples, columns, trial * 3 % 16, 0.7 + static_cast<double>(trial));
    if (!have_same_bits(left, right)) return false;
  }
  return true;
}

}  // namespace

bool libtorch_adds_in_order(int64_t samples, int64_t rows, int64_t columns) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, int64_t, int, int>, bool> known;  // guarded by mutex
  const std::tuple key{samples, rows, columns, at::get_num_threads(), matrix_product_precision()};
  const std::lock_guard<std::mutex> lock(mutex);  // one replica compares, the others wait for what it finds
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = compare_order(samples, rows, columns);
}

}  // namespace lockstep::internal
