// Trains asynchronously with parameter servers, and prints a digest of what it has learned: for replays.
// Usage: recorded_program RECORD STEPS SEED
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/server/record/value_digest.h"
#include "tests/server/recorded_run.h"

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    lockstep::testing::RecordedProgram program({.record = argv[1], .workers = 3, .seed = std::stoull(argv[3])});
    const auto train = program.strategy.step("train", program.train);
    const int code = program.strategy.coordinate([&](lockstep::Coordinator& coordinator) {
      for (int k = 0; k < std::stoi(argv[2]); ++k) coordinator.schedule(train);
    });
    uint64_t digest = 0;
    for (const auto& one : program.state()) digest = lockstep::internal::digest_with(digest, one);
    std::fputs(fmt::format("seen {} digest {:016x}\n", program.seen.read().item<int>(), digest).c_str(), stdout);
    return code;
  } catch (const std::exception& error) {
    std::fputs(fmt::format("{}\n", lockstep::message_of(std::current_exception())).c_str(), stderr);
    return 1;
  }
}
