// The program of first calls, which uses LibTorch and loads a plug-in that is linked with the library. Usage:
// first_calls_late PLUG-IN WAY NUMBER
#include <dlfcn.h>
#include <torch/types.h>

#include <cstdio>
#include <cstdlib>

#include "tests/first_calls/detections.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const torch::Tensor before = torch::ones({8, 8}).mm(torch::ones({8, 8}));
  void* const plug_in = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (plug_in == nullptr) {
    std::puts(dlerror());
    return 3;
  }
  const auto body = reinterpret_cast<int (*)(const char*, int)>(dlsym(plug_in, "first_calls"));
  const int code = body != nullptr ? body(argv[2], std::atoi(argv[3])) : 4;
  std::printf("detected %s\n", lockstep::testing::detections().c_str());
  dlclose(plug_in);
  // Tensors go on, whoever gave LibTorch its allocator.
  torch::Tensor after = before + 1;
  return after.resize_({1 << 20})[0].item<float>() == 9 ? code : 5;
}
