// The weights of rows that nobody has pushed.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "lockstep/server/embedding_options.h"

namespace lockstep::internal::inline server {

/// The number of the normal distribution below which a part `p` of it lies; p is above 1e-11, and so is 1 - p. Wichura,
/// "Algorithm AS 241" (1988), PPND16. It calls nothing of the C library, so it has the same bits on every processor.
double normal_quantile(double p);

/// A pure function of (seed, table, row), for any thread.
class InitialRows {
 public:
  InitialRows(const EmbeddingOptions& options, uint64_t seed);
  /// Writes the row's weights in the table's dtype.
  void write(int64_t row, void* weights) const;

 private:
  void write_floats(int64_t row, std::span<float> weights) const;

  RowInitial initial_;
  c10::ScalarType dtype_;
  int64_t dim_;
  uint64_t key_;
};

}  // namespace lockstep::internal::server
