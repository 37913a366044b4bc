#include "lockstep/replica/pool/compute_settings.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <memory>

#include "lockstep/replica/pool/shared_setting.h"

namespace lockstep::internal::inline replica {

namespace {

/// The setters of the libraries that LibTorch runs on, where they are loaded.
struct ThreadLibraries {
  void (*omp_set)(int) = nullptr;
  int (*omp_get)() = nullptr;
  int (*mkl_set_local)(int) = nullptr;      // returns the previous number; 0 means "follow OpenMP"
  std::unique_ptr<SharedSetting> openblas;  // process-wide, and only where OpenBLAS has its own threads
  // What the compiler calls for `#pragma omp parallel`; other OpenMP libraries have it too.
  void (*omp_parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;

  ThreadLibraries() {
    const auto find = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
    omp_set = reinterpret_cast<void (*)(int)>(find("omp_set_num_threads"));
    omp_get = reinterpret_cast<int (*)()>(find("omp_get_max_threads"));
    omp_parallel = reinterpret_cast<decltype(omp_parallel)>(find("GOMP_parallel"));
    mkl_set_local = reinterpret_cast<int (*)(int)>(find("MKL_Set_Num_Threads_Local"));
    const auto openblas_parallel = reinterpret_cast<int (*)()>(find("openblas_get_parallel"));
    constexpr int kOwnThreads = 1;  // OPENBLAS_THREAD in cblas.h
    if (openblas_parallel && openblas_parallel() == kOwnThreads) {
      openblas = std::make_unique<SharedSetting>(reinterpret_cast<int (*)()>(find("openblas_get_num_threads")),
                                                 reinterpret_cast<void (*)(int)>(find("openblas_set_num_threads")));
    }
  }
};

/// Never destroyed: threads of the library may end while the process ends.
const ThreadLibraries& libraries() {
  static const ThreadLibraries& found = *new ThreadLibraries;
  return found;
}

void set_intra_op_threads(int threads) {
  if (libraries().omp_set) libraries().omp_set(threads);
  if (libraries().mkl_set_local) libraries().mkl_set_local(threads);
}

/// Sets the modes on the calling thread and on the intra-op threads that it shares its operators with.
void set_modes(uint32_t modes, int threads) {
  if (threads > 1 && libraries().omp_parallel) {
    // The modes are passed in the pointer itself, so that the threads share nothing.
    const auto set = [](void* value) {
      set_floating_point_modes(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(value)));
    };
    // NOLINTNEXTLINE(performance-no-int-to-ptr): never dereferenced
    libraries().omp_parallel(set, reinterpret_cast<void*>(uintptr_t{modes}), static_cast<unsigned>(threads), 0);
  } else if (floating_point_modes() != modes) {
    set_floating_point_modes(modes);
  }
}

}  // namespace

void set_compute_settings_of_this_thread(ComputeSettings settings) {
  set_floating_point_modes(with_denormals(floating_point_modes(), settings.denormals));
  at::get_num_threads();  // LibTorch initialises a thread's number once, lazily: let it do so before, not after
  set_intra_op_threads(settings.threads);
}

void ensure_intra_op_threads_of_this_thread(int threads) {
  if (at::get_num_threads() != threads) set_intra_op_threads(threads);
}

ComputeSettingsGuard::ComputeSettingsGuard(ComputeSettings settings)
    : threads_(settings.threads), modes_(floating_point_modes()), openmp_(at::get_num_threads()) {
  const ThreadLibraries& library = libraries();
  if (library.omp_set && openmp_ != threads_) library.omp_set(threads_);
  if (library.mkl_set_local) mkl_ = library.mkl_set_local(threads_);
  if (library.openblas) library.openblas->begin(openblas_ = threads_);
  set_modes(with_denormals(modes_, settings.denormals), threads_);
}

ComputeSettingsGuard::~ComputeSettingsGuard() {
  const ThreadLibraries& library = libraries();
  set_modes(modes_, threads_);
  if (library.omp_set && at::get_num_threads() != openmp_) library.omp_set(openmp_);
  if (library.mkl_set_local) library.mkl_set_local(mkl_);
  if (openblas_ != 0) library.openblas->end(openblas_);
}

}  // namespace lockstep::internal::replica
