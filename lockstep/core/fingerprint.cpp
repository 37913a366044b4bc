#include "lockstep/core/fingerprint.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <string_view>

#include "lockstep/core/loops/simd.h"
#include "lockstep/core/warm_up.h"

namespace lockstep::internal::inline core {

namespace {

/// What LibTorch's configuration says between `label` and the next of the letters `ends`, or "". It is a text that
/// every version prints, because LibTorch 1.13 has no functions for all that it says.
std::string configured(std::string_view label, const char* ends) {
  const std::string config = at::show_config();
  const size_t found = config.find(label);
  if (found == std::string::npos) return "";
  const size_t begin = found + label.size();
  return config.substr(begin, config.find_first_of(ends, begin) - begin);
}

/// OpenBLAS writes its answer into memory that all callers share, so two threads that ask at the same time may read a
/// mixture of two texts. Therefore only `platform_description` asks, once in a process.
std::string matrix_library() {
  if (at::hasMKL()) return "MKL";
  if (const auto config = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_config"))) {
    std::string name = config();
    if (const auto core = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"))) {
      name += fmt::format(" ({})", core());
    }
    return name;
  }
  if (configured("BLAS_INFO=", ",\n") == "nvpl") return "NVPL";  // of LibTorch's official builds for Arm
  return "the system's BLAS";
}

/// The vector instructions that LibTorch's own kernels use, such as AVX2.
std::string cpu_capability() {
  const std::string capability = configured("CPU capability usage: ", "\n");
  return capability.empty() ? "unknown" : capability;
}

/// What the capability leaves open. Matrix libraries for Arm choose their kernels by the processor's vector unit, also
/// where LibTorch's own kernels use none but NEON. On x86-64 the capability names it.
std::string vector_unit() {
#if defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_SVE) == 0) return " (NEON)";
  const char* const name = (getauxval(AT_HWCAP2) & HWCAP2_SVE2) != 0 ? "SVE2" : "SVE";
  return fmt::format(" ({} of {} bits)", name, 8 * (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK));
#else
  return "";
#endif
}

/// [rows, columns] numbers of both signs and many sizes, the same in every process.
at::Tensor numbers(int64_t rows, int64_t columns, double phase) {
  at::Tensor values = at::empty({rows, columns}, at::kFloat);
  auto* const to = values.data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    to[i] = static_cast<float>(std::sin(0.7390851 * static_cast<double>(i) + phase));
  }
  return values;
}

}  // namespace

uint64_t matrix_product_digest() {
  warm_up_math();  // a product before makes it likelier that two threads disturb each other
  // Whatever modes the caller is in, the products are LibTorch's plain ones.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  // A depth that matrix libraries cut in different ways, and sizes that they compute on one thread.
  constexpr int64_t kSamples = 8;
  constexpr int64_t kRows = 32;
  constexpr int64_t kColumns = 448;
  const at::Tensor weight = numbers(kRows, kColumns, 0.1);
  const at::Tensor input = numbers(kSamples, kColumns, 0.2);
  const at::Tensor output_gradient = numbers(kSamples, kRows, 0.3);
  const at::Tensor bias = numbers(1, kRows, 0.4).view({kRows});
  uint64_t digest = 0;
  for (const at::Tensor& product : {input.mm(weight.t()), at::addmm(bias, input, weight.t()),
                                    output_gradient.mm(weight), output_gradient.t().mm(input)}) {
    const at::Tensor dense = product.contiguous();
    digest = XXH3_64bits_withSeed(dense.data_ptr<float>(), static_cast<size_t>(dense.numel()) * sizeof(float), digest);
  }
  return digest;
}

const std::string& platform_description() {
  static const std::string description = fmt::format("LibTorch {}, {}, CPU capability {}{}", TORCH_VERSION,
                                                     matrix_library(), cpu_capability(), vector_unit());
  return description;
}

const std::string& platform_fingerprint() {
  static const std::string fingerprint = [] {
    const std::string all =
        fmt::format("{}{}{:016x}", platform_description(), at::show_config(), matrix_product_digest());
    return fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
  }();
  return fingerprint;
}

}  // namespace lockstep::internal::core
