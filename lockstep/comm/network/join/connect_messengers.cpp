#include "lockstep/comm/network/join/connect_messengers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "lockstep/comm/network/join/refusal.h"

namespace lockstep::internal::inline comm {

namespace {

using Clock = std::chrono::steady_clock;

/// Repeats `step` on all workers until it is done on all of them; it says whether it is. Between two of them they make
/// a call, which ends where a worker is lost. `what_is_not` says what is missing after the longest time.
std::string repeat(int64_t num_workers, OnAllWorkers on_all, FunctionRef<bool()> step,
                   FunctionRef<std::string()> what_is_not) {
  const auto end = Clock::now() + kLongestConnectAll;
  const auto go_on = [&] {
    if (step()) return std::string();
    if (Clock::now() < end) return std::string("not yet");
    throw std::runtime_error(fmt::format("{} after {} s", what_is_not(), kLongestConnectAll.count()));
  };
  std::vector<std::string> missing(static_cast<std::size_t>(num_workers));
  while (true) {
    std::string problem = on_all(go_on, missing);
    const auto is_done = [](const std::string& one) { return one.empty(); };
    if (!problem.empty() || std::all_of(missing.begin(), missing.end(), is_done)) return problem;
  }
}

}  // namespace

std::string connect_messengers(Messenger* messenger, int64_t num_workers, OnAllWorkers on_all) {
  const auto is_ready = [&] {
    if (!messenger) throw std::runtime_error("it has no plug-in, or no device for it");
    return messenger->is_ready();
  };
  std::string problem = repeat(num_workers, on_all, is_ready, [] { return std::string("it has not begun"); });
  if (!problem.empty()) return problem;
  std::vector<std::string> addresses(static_cast<std::size_t>(num_workers));
  problem = on_all([&] { return messenger->address(); }, addresses);
  if (!problem.empty()) return problem;
  std::vector<std::string> nothing(addresses.size());
  const auto connect = [&] {
    messenger->connect(addresses);
    return std::string();
  };
  problem = on_all(connect, nothing);
  if (!problem.empty()) return problem;
  std::vector<int64_t> others;
  const auto is_connected = [&] {
    others = messenger->unconnected();
    return others.empty();
  };
  return repeat(num_workers, on_all, is_connected,
                [&] { return fmt::format("it is not connected with workers {}", fmt::join(others, ", ")); });
}

}  // namespace lockstep::internal::comm
