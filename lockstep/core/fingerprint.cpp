#include "lockstep/core/fingerprint.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string_view>

#include "lockstep/core/simd.h"

namespace lockstep::internal {

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

}  // namespace

const std::string& platform_description() {
  static const std::string description =
      fmt::format("LibTorch {}, {}, CPU capability {}", TORCH_VERSION, matrix_library(), cpu_capability());
  return description;
}

const std::string& platform_fingerprint() {
  static const std::string fingerprint = [] {
    const std::string all = platform_description() + at::show_config();
    return fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
  }();
  return fingerprint;
}

}  // namespace lockstep::internal
