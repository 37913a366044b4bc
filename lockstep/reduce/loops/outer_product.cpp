// Chooses among the loops of outer products, which were compiled for several sets of vector instructions.
#include "lockstep/reduce/loops/outer_product.h"

#include "lockstep/core/loops/simd.h"

namespace lockstep::internal::inline reduce {

#if defined(LOCKSTEP_WIDE_SIMD)
namespace avx2_fma {
void outer_product(const OuterProductWork& work);
}
namespace avx512 {
void outer_product(const OuterProductWork& work);
}
#elif defined(LOCKSTEP_NEON)
namespace neon {
void outer_product(const OuterProductWork& work);
}
#endif

OuterProduct outer_product() {
#if defined(LOCKSTEP_WIDE_SIMD)
  if (simd() == Simd::kAvx512) return &avx512::outer_product;
  if (simd() >= Simd::kAvx2 && __builtin_cpu_supports("fma")) return &avx2_fma::outer_product;
#elif defined(LOCKSTEP_NEON)
  if (simd() == Simd::kNeon) return &neon::outer_product;
#endif
  return nullptr;
}

}  // namespace lockstep::internal::reduce
