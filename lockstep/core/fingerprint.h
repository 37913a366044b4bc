// What the promise of equal bits depends on besides the program: LibTorch, its matrix library with its settings, the
// processor's abilities.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::internal::inline core {

/// Each part in words, for a reader: "LibTorch 2.15.0, MKL, CPU capability AVX2", or "LibTorch 2.15.0, NVPL, CPU
/// capability DEFAULT (NEON)" on Arm, where the processor's vector unit is named too. Any thread may call; the text is
/// made at the first call and stays the same for the life of the process.
const std::string& platform_description();

/// Sixteen hexadecimal digits: a hash of platform_description(), LibTorch's configuration and matrix_product_digest().
/// Any thread may call; the text is made at the first call and stays the same for the life of the process.
const std::string& platform_fingerprint();

/// A checksum of the bits that LibTorch gives for the products of a small linear layer, forward and backward. It shows
/// in which order the matrix library adds, which its own settings change too (MKL_CBWR, for one), and so which products
/// linear/product_order.h finds to be like the library's own. It does not depend on the number of threads, on
/// autograd's modes or on autocast. Any thread may call.
uint64_t matrix_product_digest();

}  // namespace lockstep::internal::core
