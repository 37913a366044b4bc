#include "tests/first_calls/detections.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>

namespace {

constexpr const char* kDetect = "mkl_serv_vml_cpu_detect";

std::atomic<int> count{0};
std::atomic<bool> on_main_thread{false};
std::atomic<bool> alone{false};

}  // namespace

/// In place of MKL's own, which its vector functions call until they know the processor.
extern "C" int mkl_serv_vml_cpu_detect() {
  if (count++ == 0) {
    on_main_thread = syscall(SYS_gettid) == getpid();
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    alone = std::distance(begin(tasks), end(tasks)) == 1;
  }
  return reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, kDetect))();
}

namespace lockstep::testing {

std::string detections() {
  if (dlsym(RTLD_NEXT, kDetect) == nullptr) return "no MKL";
  if (count == 0) return "none";
  return std::to_string(count) + (on_main_thread ? " on the main thread" : " on another thread") +
         (alone ? " alone" : " beside others");
}

}  // namespace lockstep::testing
