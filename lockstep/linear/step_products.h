// What aten::mm and aten::addmm do in the threads of replicas: some gradients stay factors, and some products of few
// samples are the library's own.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline linear {

/// Listens to both operators (intercept/operator_listener.h), once in the process, and reads
/// LOCKSTEP_FEW_SAMPLES_PRODUCTS: "off" leaves all products to LibTorch, "always" takes those of small weights too, for
/// tests, and "auto" is as if unset. Throws a UsageError for any other text. The choice holds for all strategies until
/// the next call. Call where a strategy is made, before its replicas compute.
///
/// A product of few samples is computed by few_samples_products() where that is faster and has LibTorch's bits, which
/// is tried once for each shape. Outside of replicas' threads, and before LibTorch 2.0, nothing changes.
void use_step_products();

/// How many products the library has computed so, in this process; for tests. Any thread.
int64_t num_few_samples_products();

}  // namespace lockstep::internal::linear
