#include "lockstep/optim/loops/clip.h"

#include "lockstep/optim/loops/update_block.h"

namespace lockstep::internal::inline optim {

template <class T>
double write_clipped(const GradientSum<T>& sum, int64_t count, const Clip& clip, T* to) {
  BlockUpdate work{};
  work.gradient = sum.left;
  work.right_gradient = sum.right;
  work.count = count;
  measure_block<T>()(work);
  const T factor = static_cast<T>(clip.factor);
  const T most = static_cast<T>(clip.most);
  for (int64_t j = 0; j < count; ++j) {
    const T x = (sum.right ? sum.left[j] + sum.right[j] : sum.left[j]) * factor;
    to[j] = x > most ? most : x < -most ? -most : x;  // NaN stays NaN, as by torch::clamp
  }
  return work.sum_of_squares;
}

template double write_clipped(const GradientSum<float>&, int64_t, const Clip&, float*);
template double write_clipped(const GradientSum<double>&, int64_t, const Clip&, double*);

}  // namespace lockstep::internal::optim
