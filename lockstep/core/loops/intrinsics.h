// The compiler's own functions for vector instructions of the processor that a file is compiled for, where it has any.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
