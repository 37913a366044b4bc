// Any text as what worker 0 says when it gives up waiting.
#include <string>

#include "lockstep/comm/join/missing_workers.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep::internal;
  using lockstep::fuzz::check;
  constexpr int64_t kWorkers = 5;
  const WorkersMissing missing = decode_missing({reinterpret_cast<const char*>(data), size}, kWorkers);
  check(missing.seen().size() == kWorkers, "each worker is known");
  check(missing.fact().find('\n') == std::string::npos, "a fact is one line");
  const WorkersMissing again = decode_missing(encode(missing), kWorkers);
  check(again.fact() == missing.fact() && again.seen() == missing.seen(), "what is read stays as it is");
  return 0;
}
