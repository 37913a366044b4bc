#include "lockstep/comm/failure/run_failure.h"

#include <fmt/format.h>

#include <charconv>
#include <exception>

#include "lockstep/core/log.h"

namespace lockstep::internal::inline comm {

namespace {

constexpr std::string_view kMark = "failure ";
/// As a phase; encode(WorkerPhase) does not make it.
constexpr uint64_t kUnknownPhase = ~uint64_t{0};

/// Takes a number and the character after it from the beginning of `rest`.
template <class Number>
std::optional<Number> take_number(std::string_view& rest) {
  Number number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end == rest.data() + rest.size()) return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  return number;
}

}  // namespace

std::string encode(const RunFailure& failure) {
  return fmt::format("{}{} {} {} {} {}\n{}", kMark, failure.worker, failure.process,
                     failure.phase ? encode(*failure.phase) : kUnknownPhase, static_cast<int>(failure.noticed),
                     failure.host, failure.text);
}

RunFailure decode_failure(std::string_view bytes) {
  const RunFailure unknown{.text = std::string(bytes)};
  if (!bytes.starts_with(kMark)) return unknown;
  bytes.remove_prefix(kMark.size());
  const auto worker = take_number<int64_t>(bytes);
  const auto process = take_number<int64_t>(bytes);
  const auto phase = take_number<uint64_t>(bytes);
  const auto noticed = take_number<uint8_t>(bytes);
  const std::size_t host = bytes.find('\n');
  if (!worker || !process || !phase || !noticed || host == std::string_view::npos) return unknown;
  if (*noticed > static_cast<uint8_t>(PeerError::Noticed::kMessage)) return unknown;
  return {.text = std::string(bytes.substr(host + 1)),
          .worker = *worker,
          .process = *process,
          .host = std::string(bytes.substr(0, host)),
          .noticed = static_cast<PeerError::Noticed>(*noticed),
          .phase = *phase == kUnknownPhase ? std::nullopt : std::optional(decode_phase(*phase))};
}

void tell_at_work(int64_t worker, const WorkerPhase& phase, std::string_view encoded) noexcept try {
  if (!phase.is_work()) return;
  log(LogLevel::kWarning,
      fmt::format("the run has ended while worker {} is {}: its next call throws what check_workers() throws now: {}",
                  worker, describe(phase), decode_failure(encoded).text));
} catch (const std::exception&) {  // no memory for the text: the next call says it
}

PeerError error_of(const RunFailure& failure, const std::string& text) {
  PeerError::Failed failed{
      .worker = failure.worker, .host = failure.host, .process = failure.process, .noticed = failure.noticed};
  if (failure.worker >= 0 && failure.phase) {
    failed.phase = describe(*failure.phase);
    if (failure.phase->kind != WorkerPhase::Kind::kStarting) failed.step = failure.phase->step;
  }
  return {"LS-PEER-LOST", text.empty() ? failure.text : text,
          "look at that worker's own message, and start the run again", std::move(failed)};
}

}  // namespace lockstep::internal::comm
