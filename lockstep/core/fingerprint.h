// What the promise of equal bits depends on besides the program: LibTorch, its matrix library, the processor's
// abilities.
#pragma once

#include <string>

namespace lockstep::internal {

/// Each part in words, for a reader: "LibTorch 2.15.0, MKL, CPU capability AVX2". Any thread may call; the text is made
/// at the first call and stays the same for the life of the process.
const std::string& platform_description();

/// Sixteen hexadecimal digits that differ where a part differs. Any thread may call; the text stays the same for the
/// life of the process.
const std::string& platform_fingerprint();

}  // namespace lockstep::internal
