// Chooses among the loops of random numbers that were compiled for several sets of vector instructions.
#include "lockstep/server/table/loops/uniform_row.h"

#include "lockstep/core/loops/simd.h"

namespace lockstep::internal::inline server {

LOCKSTEP_IN_EACH_SIMD(void random_words(uint64_t key, uint64_t row, int64_t count, uint32_t* to);
                      void uniform_row(uint64_t key, uint64_t row, float low, float high, int64_t count, float* to);)

RandomWords random_words() { return LOCKSTEP_BY_SIMD(random_words); }
UniformRow uniform_row() { return LOCKSTEP_BY_SIMD(uniform_row); }

}  // namespace lockstep::internal::server
