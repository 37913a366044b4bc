#include "lockstep/server/remote/evaluation_codec.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>
#include <utility>
#include <variant>

#include "lockstep/core/error.h"
#include "lockstep/server/remote/batch_bytes.h"
#include "lockstep/server/remote/tensor_bytes.h"

namespace lockstep::internal::inline server {

namespace {

/// Numbers in the key of a random stream have 32 bits.
constexpr int64_t kMostInKey = int64_t{1} << 32;

void require(bool is_so, const char* what) {
  if (is_so) return;
  throw PeerError("LS-PEER-MESSAGE", fmt::format("a message of an evaluation has {}", what),
                  "start all tasks with the same version of Lockstep");
}

}  // namespace

void require_evaluation(const ChiefMessage& message) {
  const auto* const report = std::get_if<StepReport>(&message);
  require(report != nullptr && report->step.step >= kFirstEvaluated, "no report of a part");
  const bool needs_payload = report->outcome == StepOutcome::kDone || report->outcome == StepOutcome::kFailed;
  require(!needs_payload || report->payload != nullptr, "no result of a part");
}

void require_evaluation(const WorkerMessage& message) {
  if (const auto* const give = std::get_if<GiveStep>(&message)) {
    require(give->step.step >= kFirstEvaluated, "the number of a step");
    require(give->arguments != nullptr, "no part of a batch");
    return;
  }
  const bool is_values = std::holds_alternative<PulledValues>(message) || std::holds_alternative<PushAnswer>(message);
  require(!is_values, "values of a server");
}

void EvaluationPayloads::put(PayloadKind kind, const Payload& payload, std::string& bytes) {
  ByteWriter to(bytes);
  if (kind == PayloadKind::kArguments) {
    const auto& part = as<EvaluationPart>(payload);
    to.put(part.part);
    to.put(part.step);
    to.put(part.stream.step);
    to.put(part.stream.draw);
    server::put(bytes, part.batch);
  } else if (kind == PayloadKind::kResult) {
    const auto& part = as<EvaluatedPart>(payload);
    to.put(uint64_t{part.result.size()});
    for (const at::Tensor& one : part.result) server::put(bytes, one);
    to.put(uint64_t{part.changes.size()});
    for (const StepPush::Change& one : part.changes) put_change(bytes, one, catalog_);
  } else if (kind == PayloadKind::kError) {
    payloads_.put(kind, payload, bytes);
  }
}

Payload EvaluationPayloads::get(PayloadKind kind, std::string_view bytes) {
  switch (kind) {
    case PayloadKind::kArguments: return get_part(bytes);
    case PayloadKind::kResult: return get_result(bytes);
    case PayloadKind::kError: return payloads_.get(kind, bytes);
    default: MessageReader(bytes, -1, "a message of an evaluation").refuse();
  }
}

Payload EvaluationPayloads::get_part(std::string_view bytes) const {
  MessageReader from(bytes, -1, "a part of an evaluation");
  auto part = std::make_shared<EvaluationPart>();
  part->part = from.get<int64_t>();
  part->step = from.get<int64_t>();
  const auto step = from.get<int64_t>();
  const auto draw = from.get<int64_t>();
  from.expect(part->part >= 0 && part->part < parts_ && part->step >= 0 && step >= 0 && step < kMostInKey &&
              draw >= 0 && draw < kMostInKey);
  part->stream = {seed_, StreamPurpose::kEvaluate, part->part, step, draw};
  part->batch = get_batch(from);
  from.expect_end();
  return part;
}

Payload EvaluationPayloads::get_result(std::string_view bytes) const {
  MessageReader from(bytes, -1, "a result of an evaluation");
  auto part = std::make_shared<EvaluatedPart>();
  for (std::size_t left = from.get_count(1); left > 0; --left) part->result.push_back(get_tensor(from));
  for (std::size_t left = from.get_count(sizeof(uint32_t)); left > 0; --left)
    part->changes.push_back(payloads_.get_change(from));
  from.expect_end();
  return part;
}

}  // namespace lockstep::internal::server
