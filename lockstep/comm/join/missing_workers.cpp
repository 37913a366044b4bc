#include "lockstep/comm/join/missing_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace lockstep::internal::inline comm {

namespace {

using State = SeenWorker::State;

/// Cuts the first line off.
std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

}  // namespace

WorkersMissing::WorkersMissing(std::string what_happened, std::vector<SeenWorker> all)
    : ClusterError("LS-CLUSTER-JOIN", what_happened,
                   "start the missing workers, and give all workers the same job id, chief address and secret; without "
                   "a secret only workers of this host can come"),
      fact_(std::move(what_happened)),
      seen_(std::move(all)) {}

WorkersMissing chief_missing(std::string what_happened, int64_t worker, int64_t num_workers, std::string seen) {
  std::vector<SeenWorker> all(static_cast<std::size_t>(num_workers));
  if (worker < num_workers) all[static_cast<std::size_t>(worker)].state = State::kHere;
  all.front() = {.state = State::kMissing, .what = std::move(seen)};
  return {std::move(what_happened), std::move(all)};
}

std::string encode(const WorkersMissing& missing) {
  std::string text = missing.fact();
  for (std::size_t w = 0; w < missing.seen().size(); ++w) {
    const SeenWorker& one = missing.seen()[w];
    if (one.state == State::kMissing) text += fmt::format("\n{} {}", w, one.what);
  }
  return text;
}

WorkersMissing decode_missing(const std::string& text, int64_t num_workers) {
  std::vector<SeenWorker> seen(static_cast<std::size_t>(num_workers), {.state = State::kHere});
  std::string_view rest = text;
  std::string fact(next_line(rest));
  while (!rest.empty()) {
    const std::string_view line = next_line(rest);
    std::size_t worker = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), worker);
    if (error != std::errc() || worker >= seen.size()) continue;
    const std::string_view what = line.substr(static_cast<std::size_t>(end - line.data()));
    seen[worker] = {.state = State::kMissing, .what = std::string(what.substr(std::min<std::size_t>(what.size(), 1)))};
  }
  return {std::move(fact), std::move(seen)};
}

}  // namespace lockstep::internal::comm
