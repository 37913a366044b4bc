#include "lockstep/checkpoint/folder/together.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "lockstep/comm/join/this_host.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline checkpoint {

PhaseScope told_phase(const Strategy& strategy, WorkerPhase::Kind kind) {
  return {StrategyAccess::rounds(strategy), {.kind = kind, .step = strategy.step()}};
}

std::string texts_of_all(const Strategy& strategy, const std::string& mine) {
  std::string text = mine.empty() ? "" : mine + "\n";
  if (strategy.num_workers() == 1) return text;
  // The first local replica has the worker's text.
  const auto texts = strategy.per_replica([&](ReplicaId) { return tensor_of_text(std::exchange(text, {})); });
  const at::Tensor all = strategy.gather(texts);
  return std::string(host_text(all));
}

std::string text_of_failure(const Strategy& strategy, const char* call, const std::exception_ptr& error) {
  return fmt::format("{}\t{}\t{}\t{} failed on worker {}: {}", strategy.worker_index(), getpid(), host_name(), call,
                     strategy.worker_index(), message_of(error));
}

PeerError error_of_first_failure(const Strategy& strategy, const std::string& texts) {
  std::istringstream in(texts.substr(0, texts.find('\n')));
  const WorkerPhase phase = StrategyAccess::rounds(strategy).phase();
  PeerError::Failed failed{.phase = describe(phase), .step = phase.step, .noticed = PeerError::Noticed::kFailed};
  in >> failed.worker >> failed.process;
  in.ignore(1);
  std::getline(in, failed.host, '\t');
  std::string text;
  std::getline(in, text);
  return {"LS-PEER-FAILED", text, "look at that worker's own message", std::move(failed)};
}

void all_or_none(const Strategy& strategy, const char* call, FunctionRef<void()> work) {
  if (strategy.num_workers() == 1) return work();
  std::exception_ptr own;
  std::string text;
  try {
    work();
  } catch (...) {
    own = std::current_exception();
    text = text_of_failure(strategy, call, own);
  }
  const std::string found = texts_of_all(strategy, text);
  if (own) std::rethrow_exception(own);
  if (found.empty()) return;
  throw error_of_first_failure(strategy, found);
}

std::vector<at::Tensor> bytes_of_all_replicas(const Strategy& strategy, const std::vector<at::Tensor>& mine) {
  if (strategy.num_workers() == 1) return mine;
  const auto each = [&](auto&& value_of) {
    std::size_t next = 0;
    return strategy.gather(strategy.per_replica([&](ReplicaId) { return value_of(mine[next++]); }));
  };
  const at::Tensor sizes = each([](const at::Tensor& bytes) { return at::full({1}, bytes.numel(), at::kLong); });
  const at::Tensor all = each([](const at::Tensor& bytes) { return bytes; });
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : host_numbers<int64_t>(sizes)) {
    parts.push_back(all.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

}  // namespace lockstep::internal::checkpoint
