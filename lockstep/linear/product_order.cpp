#include "lockstep/linear/product_order.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/core/denormals.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/intercept/scopes.h"
#include "lockstep/linear/few_samples_product.h"
#include "lockstep/linear/repeated_pages.h"
#include "lockstep/reduce/factors.h"

namespace lockstep::internal::inline linear {

namespace {

constexpr auto kPeriod = static_cast<int64_t>(RepeatedPages::kPeriod / sizeof(float));

/// Elements [begin, end) of a matrix in the order of its rows. Elements of other parts are the same memory where
/// `is_repeated`.
struct Part {
  int64_t begin;
  int64_t end;
  bool is_repeated;
};

/// A matrix, and the parts of which all its memory consists: most of a large matrix repeats one of them.
struct TestMatrix {
  at::Tensor matrix;
  std::vector<Part> parts;
};

/// The pages of so many periods, a few of which have memory of their own. Those that were used last are kept for the
/// next comparison: to map 64 MiB takes as long as a product.
std::shared_ptr<RepeatedPages> lease_pages(std::size_t periods) {
  struct Kept {
    std::mutex mutex;
    std::unique_ptr<RepeatedPages> pages;  // guarded by mutex
  };
  static auto* const kept = new Kept;  // never destroyed: replicas may still run
  constexpr std::size_t kOwn = 4;      // at least; rounding and the last period may add two
  std::unique_ptr<RepeatedPages> pages;
  {
    const std::lock_guard<std::mutex> lock(kept->mutex);
    if (kept->pages && kept->pages->periods() == periods) pages = std::move(kept->pages);
  }
  if (!pages) {
    const std::size_t spacing = std::max<std::size_t>(1, periods / kOwn);
    pages = std::make_unique<RepeatedPages>(periods * RepeatedPages::kPeriod, spacing);
  }
  const auto give_back = [](RepeatedPages* used) {
    std::unique_ptr<RepeatedPages> last(used);
    const std::lock_guard<std::mutex> lock(kept->mutex);
    std::swap(kept->pages, last);
  };
  return {pages.release(), give_back};
}

/// A dense matrix that begins `offset` elements behind an address to which LibTorch aligns tensors. A large one takes a
/// few megabytes of memory.
TestMatrix test_matrix(int64_t rows, int64_t columns, int64_t offset) {
  const int64_t numel = rows * columns;
  const int64_t count = offset + numel;
  if (count <= kPeriod) {
    return {at::empty({count}, at::kFloat).narrow(0, offset, numel).view({rows, columns}), {{0, numel, false}}};
  }
  const auto pages = lease_pages(static_cast<std::size_t>((count + kPeriod - 1) / kPeriod));
  const at::Tensor memory = at::from_blob(
      pages->data(), {count}, [pages](void*) {}, at::kFloat);
  TestMatrix result{memory.narrow(0, offset, numel).view({rows, columns}), {}};
  bool has_repeated = false;
  for (std::size_t i = 0; i < pages->periods(); ++i) {
    const bool is_repeated = !pages->is_own(i);
    if (is_repeated && std::exchange(has_repeated, true)) continue;
    const int64_t begin = static_cast<int64_t>(i) * kPeriod - offset;
    result.parts.push_back({std::max(begin, int64_t{0}), std::min(begin + kPeriod, numel), is_repeated});
  }
  return result;
}

/// Numbers of both signs and many sizes, and zeros of both signs; the same in every process. For `offset` see
/// test_matrix(); `which` tells one matrix from another.
at::Tensor test_values(int64_t rows, int64_t columns, int64_t offset, int64_t which) {
  // The numbers repeat after a prime number of elements: to compute a sine for each element of a large weight would
  // take longer than all products.
  constexpr std::size_t kPrime = 7919;
  static const auto period = [] {
    std::array<float, kPrime> values;
    for (std::size_t i = 0; i < kPrime; ++i) {
      const double value = std::sin(0.7390851 * static_cast<double>(i) + 0.1) / 3;
      values[i] = std::abs(value) < 0.05 ? 0.0f : value > 0.3 && value < 0.31 ? -0.0f : static_cast<float>(value);
    }
    return values;
  }();
  const TestMatrix values = test_matrix(rows, columns, offset);
  float* const to = host_numbers_to_write<float>(values.matrix).data();
  std::size_t from = static_cast<std::size_t>(which) * 1009 % kPrime;
  for (const Part& part : values.parts) {
    for (int64_t at = part.begin; at < part.end; from = 0) {
      const auto count = std::min(static_cast<int64_t>(kPrime - from), part.end - at);
      std::copy_n(period.data() + from, count, to + at);
      at += count;
    }
  }
  return values.matrix;
}

bool have_same_bits(const at::Tensor& theirs, const float* ours, int64_t offset, int64_t count) {
  const float* const values = host_numbers<float>(theirs).data() + offset;
  return std::memcmp(ours, values, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

/// Whether a product can be compared: dense, and with results that are not 0, because zeros are equal in any order.
bool is_comparable(const at::Tensor& product) {
  if (product.scalar_type() != at::kFloat || !product.is_contiguous()) return false;
  constexpr int64_t kLooked = 4096;
  constexpr int64_t kFewest = 16;
  const float* const values = host_numbers<float>(product).data();
  return kFewest <= std::count_if(values, values + std::min(kLooked, product.numel()), [](float v) { return v != 0; });
}

/// Makes some columns of a factor so small that products of them underflow. Each of these columns has one sign, and the
/// first of them has that of `sign`, so that all products of some sums are -0.
void make_some_products_underflow(const at::Tensor& factor, double sign) {
  const int64_t columns = factor.size(1);
  if (columns == 1) return;
  if (static_cast<std::size_t>(factor.numel()) * sizeof(float) < RepeatedPages::kPeriod) {
    const int64_t first = std::min(columns - 1, int64_t{3});
    factor.slice(1, first, columns, 7).abs_().mul_(sign * 1e-30);
    factor.slice(1, std::min(first + 7, columns), columns, 14).neg_();
    return;
  }
  // Other elements may be the same memory: so only a few are changed, and set rather than scaled.
  for (int64_t i = 0; i < 8; ++i) factor.select(1, 3 + 7 * i).fill_(i % 2 == 0 ? sign * 1e-30 : sign * -1e-30);
}

/// Removes from `possible` what does not have the bits of LibTorch's product; false where nothing is left.
bool compare_factors(int64_t samples, int64_t rows, int64_t columns, int64_t trial, std::vector<ZeroSums>& possible) {
  constexpr int64_t kAtATime = 1 << 12;
  const at::Tensor left = test_values(samples, rows, trial * 5 % 16, 2 * trial);
  const at::Tensor right = test_values(samples, columns, trial * 3 % 16, 2 * trial + 1);
  make_some_products_underflow(left, 1);
  make_some_products_underflow(right, -1);
  // Of a large product some parts are compared, from its first row to its last: to write tens of megabytes that the
  // process has not used yet would take several times as long as the products.
  TestMatrix theirs = test_matrix(rows, columns, 0);
  at::mm_out(theirs.matrix, left.t(), right);
  if (!is_comparable(theirs.matrix)) return false;
  std::erase_if(possible, [&](ZeroSums zero_sums) {
    const Factors factors(left, right, zero_sums);
    FactorBlocks ours(4 * kAtATime);
    for (const Part& part : theirs.parts) {
      if (part.is_repeated) continue;
      for (int64_t offset = part.begin; offset < part.end; offset += kAtATime) {
        const int64_t count = std::min(kAtATime, part.end - offset);
        if (!have_same_bits(theirs.matrix, ours.block(factors, offset, count), offset, count)) return true;
      }
    }
    return false;
  });
  return !possible.empty();
}

/// The orders in which the library has this product.
std::vector<SumOrder> orders_of(LinearProduct product) {
  std::vector<SumOrder> orders{SumOrder::kChainsOf192, SumOrder::kChainsOf384, SumOrder::kBalancedChainsOf384};
  if (product != LinearProduct::kInputGradient) orders.push_back(SumOrder::kInterleavedChains);
  return orders;
}

/// Removes from `possible` what does not have the bits of LibTorch's product; false where nothing is left.
bool compare_few_samples(LinearProduct product, int64_t samples, int64_t rows, int64_t columns, int64_t trial,
                         std::vector<SumOrder>& possible) {
  const bool forward = product != LinearProduct::kInputGradient;
  const at::Tensor weight = test_values(rows, columns, trial * 3 % 16, 3 * trial);
  const at::Tensor input = test_values(samples, forward ? columns : rows, trial * 5 % 16, 3 * trial + 1);
  const at::Tensor bias = test_values(1, rows, trial * 7 % 16, 3 * trial + 2).view({rows});
  // One result, or more, underflows in all its products, to -0: this tells what a sum without a bias begins with.
  // Elements of a large weight may be the same memory, so they are set and not scaled, and only where these are few of
  // all.
  const auto depth = static_cast<std::size_t>(forward ? columns : rows);
  if (8 * depth * sizeof(float) <= RepeatedPages::kPeriod) {
    input.select(0, samples - 1).fill_(1e-30);
    (forward ? weight.select(0, rows / 2) : weight.select(1, columns / 2)).fill_(-1e-30);
    bias[rows / 2] = 0;
  }
  const at::Tensor theirs = product == LinearProduct::kOutputWithBias ? at::addmm(bias, input, weight.t())
                            : forward                                 ? input.mm(weight.t())
                                                                      : input.mm(weight);
  if (!is_comparable(theirs)) return false;
  const at::Tensor ours = at::empty_like(theirs);
  const at::Tensor scratch = at::empty({few_samples_scratch(samples, rows, columns)}, at::kFloat);
  FewSamplesWork work = {};
  work.weight = host_numbers<float>(weight).data();
  work.rows = rows;
  work.columns = columns;
  work.input = host_numbers<float>(input).data();
  work.samples = samples;
  work.bias = product == LinearProduct::kOutputWithBias ? host_numbers<float>(bias).data() : nullptr;
  work.out = host_numbers_to_write<float>(ours).data();
  work.scratch = host_numbers_to_write<float>(scratch).data();
  const FewSamplesProducts& products = *few_samples_products();
  std::erase_if(possible, [&](SumOrder order) {
    work.order = order;
    (forward ? products.forward : products.input_gradient)(work);
    return !have_same_bits(theirs, work.out, 0, theirs.numel());
  });
  return !possible.empty();
}

/// Whether `compare(trial)` holds for each trial of a product with so many results, of a matrix of so many elements.
template <class Compare>
bool compare_often_enough(int64_t results, int64_t elements, const Compare& compare) {
  // Another order gives the same bits for many results, so small products are compared more than once. The order of
  // some products depends on addresses, so each trial uses other ones.
  constexpr int64_t kEnough = 1 << 15;
  constexpr int64_t kTooFew = 64;  // would be compared more than 512 times
  if (results < kTooFew) return false;
  const bool large = elements >= 1 << 20;  // compared once, with the less usual addresses
  const at::NoGradGuard no_grad;
  const UnheardScope libtorchs_own;
  for (int64_t trial = large ? 1 : 0; trial < 2 || (!large && trial * results < kEnough); ++trial) {
    if (!compare(trial)) return false;
  }
  return true;
}

/// What was found for each product, shape, number of threads, precision and floating-point modes.
template <class Found>
class Answers {
 public:
  /// What `find` returns, called once; Found{} where LibTorch does not say which precision holds, or where there is no
  /// memory to compare in. `product` tells the products of one shape apart.
  template <class Find>
  Found of(int product, int64_t samples, int64_t rows, int64_t columns, const Find& find) {
    const int precision = matrix_product_precision();
    if (precision < 0) return {};
    const Key key{product, samples, rows, columns, at::get_num_threads(), precision, floating_point_modes()};
    Answer* answer = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      answer = &answers_[key];
    }
    std::call_once(answer->asked, [&] {
      try {
        answer->found = find();
      } catch (const std::exception&) {  // LibTorch throws an error of its own where memory is short
      }
    });
    return answer->found;
  }

 private:
  // Product, samples, rows, columns, threads, precision, floating-point modes.
  using Key = std::tuple<int, int64_t, int64_t, int64_t, int, int, uint32_t>;
  struct Answer {
    std::once_flag asked;
    Found found = {};  // written under `asked`
  };

  std::mutex mutex_;
  std::map<Key, Answer> answers_;  // guarded by mutex_
};

}  // namespace

std::optional<SumOrder> sum_order_of_libtorch(LinearProduct product, int64_t samples, int64_t rows, int64_t columns) {
  static auto* const answers = new Answers<std::optional<SumOrder>>;  // never destroyed: replicas may still run
  return answers->of(static_cast<int>(product), samples, rows, columns, [&]() -> std::optional<SumOrder> {
    const int64_t results = samples * (product == LinearProduct::kInputGradient ? columns : rows);
    std::vector<SumOrder> possible = orders_of(product);
    const bool same = compare_often_enough(results, rows * columns, [&](int64_t trial) {
      return compare_few_samples(product, samples, rows, columns, trial, possible);
    });
    // Several orders may cut this depth in the same way. Then any of them will do, if its sums begin with the same.
    const bool is_one = std::all_of(possible.begin(), possible.end(), [&](SumOrder order) {
      return product == LinearProduct::kOutputWithBias || begins_with_zero(order) == begins_with_zero(possible.front());
    });
    return same && is_one ? std::optional(possible.front()) : std::nullopt;
  });
}

std::optional<ZeroSums> zero_sums_of_libtorch(int64_t samples, int64_t rows, int64_t columns) {
  static auto* const answers = new Answers<std::optional<ZeroSums>>;  // never destroyed: replicas may still run
  return answers->of(0, samples, rows, columns, [&]() -> std::optional<ZeroSums> {
    // A single product is no sum: nothing is added to it, whatever the library does with sums.
    std::vector<ZeroSums> possible{ZeroSums::kSigned};
    if (samples > 1) possible.push_back(ZeroSums::kPositive);
    const bool same = compare_often_enough(rows * columns, rows * columns, [&](int64_t trial) {
      return compare_factors(samples, rows, columns, trial, possible);
    });
    // Both fit only where no sum of a narrow matrix is a zero.
    return same && possible.size() == 1 ? std::optional(possible.front()) : std::nullopt;
  });
}

}  // namespace lockstep::internal::linear
