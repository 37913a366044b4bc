// Why a run has ended, as workers tell it to each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/failure/phase.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

/// The first failure of a run. All workers throw it, with the same members.
struct RunFailure {
  std::string text = {};
  int64_t worker = -1;  // that failed; -1: no single one
  int64_t process = 0;  // 0: not known
  std::string host = {};
  PeerError::Noticed noticed = PeerError::Noticed::kUnknown;
  std::optional<WorkerPhase> phase = {};  // of the worker, as it was last known

  bool operator==(const RunFailure&) const = default;
};

/// As one text, and back. decode_failure() takes any text: what encode() does not make is the failure's text.
std::string encode(const RunFailure& failure);
RunFailure decode_failure(std::string_view bytes);

/// Where a worker is at work when the run ends, which `encoded` says why: the log says so at once, since its own next
/// call may be far away.
void tell_at_work(int64_t worker, const WorkerPhase& phase, std::string_view encoded) noexcept;

/// The error for it (LS-PEER-LOST); `text` stands in place of the failure's own where it is not empty.
PeerError error_of(const RunFailure& failure, const std::string& text = {});

}  // namespace lockstep::internal::comm
