// Payloads of the protocol's messages as bytes: pulls, values, pushes, arguments, results and errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/core/bytes.h"
#include "lockstep/server/local/step_payloads.h"
#include "lockstep/server/protocol/wire.h"
#include "lockstep/server/remote/catalog.h"

namespace lockstep::internal::inline server {

/// A server's part of a round that is being decided, for its norm.
struct SquaresOfRound {
  double squares = 0;
  std::optional<double> clip = std::nullopt;  // the largest norm that the round may have
};

// Each throws a PeerError (LS-PEER-MESSAGE) where a message lacks a payload that every such message has.
void require_payloads(const ChiefMessage& message);
void require_payloads(const ServerMessage& message);
void require_payloads(const WorkerMessage& message);

void put_change(std::string& bytes, const StepPush::Change& change, const Catalog& catalog);

/// One thread at a time uses it. Of a task that gets messages of workers, what they name must lie there: `server` is
/// that task's number among the servers, or -1. Where gradients are rounded to bfloat16, those of float32 travel so.
class RemotePayloads final : public PayloadCodec {
 public:
  RemotePayloads(const Catalog& catalog, int32_t server, int32_t servers, bool rounds_gradients = false)
      : catalog_(catalog), server_(server), servers_(servers), rounds_gradients_(rounds_gradients) {}

  void put(PayloadKind kind, const Payload& payload, std::string& bytes) override;
  Payload get(PayloadKind kind, std::string_view bytes) override;
  StepPush::Change get_change(MessageReader& from) const;

 private:
  Payload get_request(std::string_view bytes) const;
  Payload get_push(std::string_view bytes) const;
  void put_push(std::string& bytes, const StepPush& push) const;
  /// `type` is that of the gradient when it was pushed.
  at::Tensor get_gradient(MessageReader& from, at::ScalarType type) const;
  /// One of which this server has a part.
  const Variable& variable(MessageReader& from) const;
  const std::shared_ptr<TableState>& table(MessageReader& from) const;
  /// The shape of what lies here of a variable.
  std::vector<int64_t> sizes_here(const Variable& variable) const;
  std::vector<int64_t> get_ids(MessageReader& from, const TableState& table) const;

  const Catalog& catalog_;
  const int32_t server_;
  const int32_t servers_;
  const bool rounds_gradients_;
};

}  // namespace lockstep::internal::server
