// A gradient that is not written: the factors of sums of outer products, and blocks of it that are made on request.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/reduce/loops/outer_product.h"

namespace lockstep::internal::inline reduce {

/// A matrix of float32 that is the sum of terms. A term is a sum over samples of outer products of two vectors,
/// left(s, i) * right(s, j); the terms are added from left to right, each rounded before. It holds copies of its
/// factors, samples * (rows + columns) numbers, so the tensors that they came from may be overwritten. Any thread may
/// read it.
class Factors {
 public:
  /// Whether this process can make blocks at all: it needs a fused multiply-add.
  static bool available();

  /// One term's factors: dense float32 memory, packed as outer_product.h says.
  struct Term {
    int64_t samples;
    ZeroSums zero_sums;
    at::Tensor left;   // left_size(samples, rows) elements
    at::Tensor right;  // right_size(samples, columns) elements
  };
  static int64_t left_size(int64_t samples, int64_t rows) {
    return (rows + kLeftGroup - 1) / kLeftGroup * kLeftGroup * samples;
  }
  static int64_t right_size(int64_t samples, int64_t columns) {
    return (columns + kRightPanel - 1) / kRightPanel * kRightPanel * samples;
  }

  /// One term. `left` is [samples, rows] and `right` [samples, columns]: dense float32 tensors in host memory, in any
  /// strides, with at least one element each. Requires available().
  Factors(const at::Tensor& left, const at::Tensor& right, ZeroSums zero_sums);
  /// What another process has packed; at least one term. It shares the terms' memory.
  Factors(int64_t rows, int64_t columns, uint32_t modes, std::vector<Term> terms)
      : rows_(rows), columns_(columns), modes_(modes), terms_(std::move(terms)) {}
  /// The sum of two matrices of one shape, with the bits of adding them up after they were made; null where no order of
  /// terms has these bits, because both have several, or because they have other modes.
  static std::shared_ptr<const Factors> sum(const Factors& a, const Factors& b);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t samples() const;  // of all terms
  const std::vector<Term>& terms() const { return terms_; }

  /// The floating-point modes (core/denormals.h) of the thread that made the factors, by which LibTorch would have
  /// computed the matrix.
  uint32_t modes() const { return modes_; }

  /// Writes rows [first, first + count) to `out`, dense, in the calling thread's modes. `first` is a multiple of
  /// kLeftGroup.
  void fill_rows(int64_t first, int64_t count, float* out) const;
  /// The first `count` rows as a new tensor, in the matrix's own modes.
  at::Tensor first_rows(int64_t count) const;
  /// The whole matrix as a new tensor, in its own modes.
  at::Tensor product() const { return first_rows(rows_); }

 private:
  Factors(const Factors& first, const Term& last);

  int64_t rows_;
  int64_t columns_;
  uint32_t modes_;
  std::vector<Term> terms_;
};

/// Makes one matrix's blocks, some whole rows at a time, and keeps these rows until others are needed. Ascending order
/// is fast; every order is right. One thread at a time uses it.
class FactorBlocks {
 public:
  /// Makes about `room` elements at a time, or what one block needs. The more rows are made together, the more often a
  /// part of the right factor is used while it is in a cache.
  explicit FactorBlocks(int64_t room) : room_(room) {}

  /// Gets memory for all blocks of up to `count` elements of a matrix of that shape. block() then needs none.
  void reserve(int64_t rows, int64_t columns, int64_t count);
  /// Elements [offset, offset + count) of the matrix in the order of its rows. Valid until the next call.
  const float* block(const Factors& factors, int64_t offset, int64_t count);
  /// Call before the first block of a step: other factors may lie where earlier ones lay.
  void restart() { factors_ = nullptr; }

 private:
  /// How many rows are made together so that there are `count` elements more.
  int64_t rows_for(int64_t count, int64_t columns) const;

  int64_t room_;
  const Factors* factors_ = nullptr;
  // Elements [begin_, end_) of the matrix are in values_. end_ is the begin of a group of rows, or the matrix's end.
  int64_t begin_ = 0;
  int64_t end_ = 0;
  std::vector<float> values_;
};

}  // namespace lockstep::internal::reduce
