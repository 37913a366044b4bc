// A table of rows that are made when they are first used: what it is called, how large it is, and how its rows begin.
#pragma once

#include <c10/core/ScalarType.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace lockstep {

/// The weights of rows that nobody has pushed: a function of the run's seed, the table's name and the row. They depend
/// neither on the order in which rows are used, nor on the number of servers. Numbers are drawn in float32 and then
/// rounded to the table's dtype; they are the same on every processor.
class RowInitial {
 public:
  /// Writes the weights of a row, `dim` of them. Any thread calls it, at any time and again, so it depends on the row
  /// alone. It throws nothing.
  using Function = std::function<void(int64_t row, std::span<float> weights)>;
  enum class Kind : uint8_t { kUniform, kNormal, kFunction };

  /// uniform(-0.05, 0.05), as tf.keras.layers.Embedding has it.
  RowInitial() = default;
  /// Every weight is `constant`.
  RowInitial(double constant) : first_(constant), second_(constant) {}  // NOLINT(google-explicit-constructor)
  /// What the program's own function writes.
  template <class F>
  requires(std::invocable<const F&, int64_t, std::span<float>> && !std::convertible_to<F, double>)  //
      RowInitial(F function)  // NOLINT(google-explicit-constructor)
      : kind_(Kind::kFunction), function_(std::move(function)) {}

  /// Evenly spread from `low` to `high`.
  static RowInitial uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  /// Normal; normal(0, 1) is what torch::nn::Embedding has.
  static RowInitial normal(double mean, double deviation) { return {Kind::kNormal, mean, deviation}; }

  Kind kind() const { return kind_; }
  double first() const { return first_; }    // low, or mean
  double second() const { return second_; }  // high, or deviation
  const Function& function() const { return function_; }

 private:
  RowInitial(Kind kind, double first, double second) : kind_(kind), first_(first), second_(second) {}

  Kind kind_ = Kind::kUniform;
  double first_ = -0.05;
  double second_ = 0.05;
  Function function_;
};

/// A table of `rows` x `dim` whose rows are spread over the parameter servers. Row r lies on server
/// floor(servers * h / 4096), where h is the upper 12 bits of a fixed 64-bit mix of the row and the table's name.
///
/// A row takes memory from its first push that counts. A look-up keeps nothing: a row that was never pushed gives its
/// initial weights. With `admit_after` = k a row is kept from its k-th push on, and that push is the first that changes
/// its weights; before, it gives its initial weights, and only a count is kept. With `evict_after` = n a row that no
/// push has named in n steps that count is forgotten, with its slots and its count: it is a new row when it comes
/// again.
struct EmbeddingOptions {
  std::string name = {};  // in messages and checkpoints; no two tables of a strategy have one name
  int64_t rows = 0;       // ids are from 0 to below it; 0: any 64-bit number is a row
  int64_t dim = 0;        // weights of a row
  RowInitial initial = {};
  int64_t admit_after = 0;  // pushes that count; 0 and 1: every row is kept
  int64_t evict_after = 0;  // steps that count; 0: never
  /// Of the table on one server: rows, slots, ids, counts and index, but not what a checkpoint holds while it is
  /// written; 0: none. A step whose push goes over it does not count (LS-TABLE-FULL).
  int64_t limit_bytes = 0;
  c10::ScalarType dtype = c10::kFloat;  // of weights and slots: float32, float64, bfloat16 or float16
};

namespace internal::inline server {

/// A UsageError (LS-OPTION) that names the table, the option and the value, where one is out of its range.
void check(const EmbeddingOptions& options);

}  // namespace internal::server
}  // namespace lockstep
