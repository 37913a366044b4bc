// Any text as TF_CONFIG.
#include "lockstep/cluster/sources.h"
#include "tests/fuzz/spec_promises.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::expect_value_or_error([&] {
    const auto spec = internal::tf_config(Environment(Environment::Variables{{"TF_CONFIG", text}}));
    if (spec) fuzz::check_spec(*spec);
  });
  return 0;
}
