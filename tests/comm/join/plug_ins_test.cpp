// What loading an engine's plug-in does to the process: its signals and its memory stay its own.
#include "lockstep/comm/join/plug_ins.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "tests/support/worker_processes.h"

namespace lockstep::internal {
namespace {

using testing::report;
using testing::WorkerProcesses;

constexpr std::pair<const char*, const char*> kOfUcx[] = {
    {"UCX_ERROR_SIGNALS", ""},  {"UCX_HANDLE_ERRORS", "none"},  {"UCX_LOG_LEVEL", "fatal"},
    {"UCX_MEM_EVENTS", "no"},   {"UCX_MEM_MALLOC_HOOKS", "no"}, {"UCX_MEM_MMAP_HOOK_MODE", "none"},
    {"UCX_TCP_PUT_ENABLE", "n"}};

void handle(int) {}

/// In a process in which UCX has not been loaded yet. UCX_LOG_LEVEL is the user's.
WORKER_BODY(loads_ucx) {
  for (const auto& [name, value] : kOfUcx) unsetenv(name);
  setenv("UCX_LOG_LEVEL", "fatal", 1);
  std::signal(SIGSEGV, handle);
  try {
    const auto messenger = load_messenger("ucx", {.num_workers = 2, .network_interface = "lo"});
    report("loaded");
  } catch (const ClusterError& error) {
    return report(std::string("missing: ") + error.what());
  }
  for (const auto& [name, value] : kOfUcx) {
    const char* const found = std::getenv(name);
    report(std::string(name) + "=" + (found ? found : "nothing"));
  }
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  report(std::string("SIGSEGV has ") + (now.sa_handler == handle ? "the program's handler" : "another handler"));
}

TEST(PlugIns, UcxIsToldToLeaveSignalsAndMemoryAlone) {
  WorkerProcesses process("loads_ucx", 1);
  const std::string first = process.expect(0, "").text;
  if (first != "loaded") GTEST_SKIP() << first;
  for (const auto& [name, value] : kOfUcx) {
    const std::string variable = std::string(name) + "=";
    EXPECT_EQ(process.expect(0, variable).text, variable + value);
  }
  EXPECT_EQ(process.expect(0, "SIGSEGV has ").text, "SIGSEGV has the program's handler");
  EXPECT_EQ(process.wait(0).code, 0) << process.output(0);
}

}  // namespace
}  // namespace lockstep::internal
