// What the promise of equal bits depends on besides the program: LibTorch, its matrix library, the processor's
// abilities.
#pragma once

#include <string>

namespace lockstep::internal {

/// Each part in words, for a reader: "LibTorch 2.15.0, MKL ..., AVX2, ...".
std::string platform_description();

/// Sixteen hexadecimal digits that differ where a part differs.
std::string platform_fingerprint();

}  // namespace lockstep::internal
