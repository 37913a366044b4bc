// Any text as a list of hosts and as tasks on each of them.
#include <numeric>

#include "lockstep/cluster/host_list.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  constexpr int64_t kMost = 2000;
  const internal::NamedText text{"LIST", std::string(reinterpret_cast<const char*>(data), size)};
  fuzz::expect_value_or_error([&] {
    const auto hosts = internal::expand_host_list(text, kMost);
    fuzz::check(!hosts.empty() && hosts.size() <= kMost, "the number of hosts is bounded");
    std::string plain;
    for (const std::string& host : hosts) plain += (plain.empty() ? "" : ",") + host;
    fuzz::check(internal::expand_host_list({"LIST", plain}, kMost) == hosts, "an expanded list stays as it is");
  });
  fuzz::expect_value_or_error([&] {
    const auto tasks = internal::expand_tasks_per_node(text, kMost);
    const int64_t sum = std::accumulate(tasks.begin(), tasks.end(), int64_t{0});
    fuzz::check(!tasks.empty() && sum <= kMost, "the number of tasks is bounded");
    std::string plain;
    for (const int64_t count : tasks) plain += (plain.empty() ? "" : ",") + std::to_string(count);
    fuzz::check(internal::expand_tasks_per_node({"TASKS", plain}, kMost) == tasks, "an expanded list stays as it is");
  });
  return 0;
}
