#include "lockstep/core/fingerprint.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <string_view>

#include "lockstep/core/loops/simd.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline core {

namespace {

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
  return "the system's BLAS";
}

/// The vector instructions that LibTorch's own kernels use, such as AVX2. They are read from a text that every version
/// prints, because LibTorch 1.13 has no function for them.
std::string cpu_capability() {
  static constexpr std::string_view kLabel = "CPU capability usage: ";
  const std::string config = at::show_config();
  const size_t label = config.find(kLabel);
  if (label == std::string::npos) return "unknown";
  const size_t begin = label + kLabel.size();
  return config.substr(begin, config.find('\n', begin) - begin);
}

/// [rows, columns] numbers of both signs and many sizes, the same in every process.
at::Tensor numbers(int64_t rows, int64_t columns, double phase) {
  at::Tensor values = at::empty({rows, columns}, at::kFloat);
  double i = 0;
  for (float& value : host_numbers_to_write<float>(values))
    value = static_cast<float>(std::sin(0.7390851 * i++ + phase));
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
    digest = XXH3_64bits_withSeed(host_bytes(dense).data(), host_bytes(dense).size(), digest);
  }
  return digest;
}

const std::string& platform_description() {
  static const std::string description =
      fmt::format("LibTorch {}, {}, CPU capability {}", TORCH_VERSION, matrix_library(), cpu_capability());
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
