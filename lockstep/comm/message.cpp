#include "lockstep/comm/message.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

std::string objection_to(const MessageHead& head, const ExpectedMessage& expected, int64_t from, int64_t to) {
  using Kind = MessageHead::Kind;
  const bool is_known = head.kind == Kind::kRecord || head.kind == Kind::kBytes;
  if (!is_known || head.call != expected.call || (head.kind == Kind::kRecord && head.size > expected.longest)) {
    return fmt::format("worker {} sent what worker {} does not understand", from, to);
  }
  if (head.kind != expected.kind) {
    const bool agrees = expected.kind == Kind::kRecord;
    return fmt::format("worker {} called agree() while worker {} called exchange()", agrees ? to : from,
                       agrees ? from : to);
  }
  if (expected.size && head.size != *expected.size) {
    return fmt::format("worker {} sent {} bytes where worker {} expects {}", from, head.size, to, *expected.size);
  }
  return {};
}

void require_record_size(uint64_t bytes) {
  if (bytes <= kLongestRecord) return;
  throw UsageError("LS-COUNT", fmt::format("a record of {} bytes was given to agree()", bytes),
                   fmt::format("give at most {} bytes, and larger values to exchange()", kLongestRecord));
}

}  // namespace lockstep::internal::comm
