#include "lockstep/replica/intra_op_threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace lockstep::internal {

namespace {

/// The setters of the libraries that LibTorch runs on, where they are loaded.
struct ThreadLibraries {
  void (*omp_set)(int) = nullptr;
  int (*omp_get)() = nullptr;
  int (*mkl_set_local)(int) = nullptr;  // gives the number of before; 0 means "follow OpenMP"
  void (*openblas_set)(int) = nullptr;  // process-wide, and only where OpenBLAS has threads of its own
  int (*openblas_get)() = nullptr;

  ThreadLibraries() {
    const auto find = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
    omp_set = reinterpret_cast<void (*)(int)>(find("omp_set_num_threads"));
    omp_get = reinterpret_cast<int (*)()>(find("omp_get_max_threads"));
    mkl_set_local = reinterpret_cast<int (*)(int)>(find("MKL_Set_Num_Threads_Local"));
    const auto openblas_parallel = reinterpret_cast<int (*)()>(find("openblas_get_parallel"));
    constexpr int kOwnThreads = 1;  // OPENBLAS_THREAD in cblas.h
    if (openblas_parallel && openblas_parallel() == kOwnThreads) {
      openblas_set = reinterpret_cast<void (*)(int)>(find("openblas_set_num_threads"));
      openblas_get = reinterpret_cast<int (*)()>(find("openblas_get_num_threads"));
    }
  }
};

const ThreadLibraries& libraries() {
  static const ThreadLibraries found;
  return found;
}

}  // namespace

void set_intra_op_threads_of_this_thread(int threads) {
  at::get_num_threads();  // LibTorch initialises a thread's number once, lazily: before ours, not over it
  if (libraries().omp_set) libraries().omp_set(threads);
  if (libraries().mkl_set_local) libraries().mkl_set_local(threads);
}

void ensure_intra_op_threads_of_this_thread(int threads) {
  if (at::get_num_threads() != threads) set_intra_op_threads_of_this_thread(threads);
}

IntraOpThreadsGuard::IntraOpThreadsGuard(int threads) : openmp_(at::get_num_threads()), mkl_(0), openblas_(0) {
  const ThreadLibraries& library = libraries();
  if (library.omp_set && openmp_ != threads) library.omp_set(threads);
  if (library.mkl_set_local) mkl_ = library.mkl_set_local(threads);
  if (library.openblas_set && library.openblas_get() != threads) {
    openblas_ = library.openblas_get();
    library.openblas_set(threads);
  }
}

IntraOpThreadsGuard::~IntraOpThreadsGuard() {
  const ThreadLibraries& library = libraries();
  if (library.omp_set && at::get_num_threads() != openmp_) library.omp_set(openmp_);
  if (library.mkl_set_local) library.mkl_set_local(mkl_);
  if (openblas_ != 0) library.openblas_set(openblas_);
}

}  // namespace lockstep::internal
