#include "lockstep/server/table/initial_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/server/table/loops/uniform_row.h"
#include "lockstep/server/table/numbers.h"
#include "lockstep/server/table/row_hash.h"

namespace lockstep::internal::inline server {

namespace {

/// The natural logarithm: with m from the root of a half to that of 2 and s = (m - 1) / (m + 1), log(m 2^e) is e log 2
/// + 2 (s + s^3 / 3 + s^5 / 5 + ...).
double logarithm(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  double series = 0;
  for (int k = 23; k > 0; k -= 2) series = series * (s * s) + 1.0 / k;
  return exponent * 0.69314718055994531 + 2 * s * series;
}

/// A polynomial's value; the coefficient of the highest power comes first.
template <std::size_t kCount>
double polynomial(const double (&coefficients)[kCount], double x) {
  double value = 0;
  for (const double c : coefficients) value = value * x + c;
  return value;
}

}  // namespace

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    constexpr double kAbove[] = {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
                                 4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
                                 1.3314166789178437745e2, 3.3871328727963666080e0};
    constexpr double kBelow[] = {
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
        5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0};
    const double r = 0.180625 - q * q;
    return q * (polynomial(kAbove, r) / polynomial(kBelow, r));
  }
  constexpr double kAbove[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
                               1.27045825245236838258e0,  3.64784832476320460504e0,  5.76949722146069140550e0,
                               4.63033784615654529590e0,  1.42343711074968357734e0};
  constexpr double kBelow[] = {
      1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
      6.89767334985100004550e-1, 1.67638483018380384940e0,  2.05319162663775882187e0,  1.0};
  const double r = std::sqrt(-logarithm(q < 0 ? p : 1 - p)) - 1.6;
  const double size = polynomial(kAbove, r) / polynomial(kBelow, r);
  return q < 0 ? -size : size;
}

InitialRows::InitialRows(const EmbeddingOptions& options, uint64_t seed)
    : initial_(options.initial),
      dtype_(options.dtype),
      dim_(options.dim),
      key_(mixed_bits(mixed_bits(seed) ^ table_number(options.name))) {}

void InitialRows::write_floats(int64_t row, std::span<float> weights) const {
  const auto count = static_cast<int64_t>(weights.size());
  switch (initial_.kind()) {
    case RowInitial::Kind::kUniform: {
      const auto low = static_cast<float>(initial_.first());
      const auto high = static_cast<float>(initial_.second());
      if (low == high) {
        std::ranges::fill(weights, low);
        return;
      }
      static const UniformRow uniform = uniform_row();
      uniform(key_, static_cast<uint64_t>(row), low, high, count, weights.data());
      return;
    }
    case RowInitial::Kind::kNormal: {
      static const RandomWords words = random_words();
      thread_local std::vector<uint32_t> drawn;
      drawn.resize(weights.size());
      words(key_, static_cast<uint64_t>(row), count, drawn.data());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double p = (drawn[i] + 0.5) / 4294967296.0;
        weights[i] = static_cast<float>(initial_.first() + initial_.second() * normal_quantile(p));
      }
      return;
    }
    case RowInitial::Kind::kFunction: initial_.function()(row, weights); return;
  }
}

void InitialRows::write(int64_t row, void* weights) const {
  const auto count = static_cast<std::size_t>(dim_);
  if (dtype_ == c10::kFloat) return write_floats(row, {static_cast<float*>(weights), count});
  thread_local std::vector<float> floats;
  floats.resize(count);
  write_floats(row, floats);
  for_stored_type(dtype_, [&]<class Stored>(Stored) {
    for (std::size_t i = 0; i < count; ++i) static_cast<Stored*>(weights)[i] = static_cast<Stored>(floats[i]);
  });
}

}  // namespace lockstep::internal::server
