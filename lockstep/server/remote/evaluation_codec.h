// Parts of evaluations as bytes: the batch that a worker is given, and what comes of it.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/server/remote/payload_codec.h"

namespace lockstep::internal::inline server {

// Each throws a PeerError (LS-PEER-MESSAGE) where the message is none of an evaluation, or lacks a payload that every
// such message has.
void require_evaluation(const ChiefMessage& message);
void require_evaluation(const WorkerMessage& message);

/// Of messages between workers and the chief of evaluations. A part has the data of its batch, and no function: the
/// worker knows it by its kind.
class EvaluationPayloads final : public PayloadCodec {
 public:
  /// `parts`: how many parts a batch has at most. `seed` is the strategy's.
  EvaluationPayloads(const Catalog& catalog, int64_t parts, uint64_t seed)
      : catalog_(catalog), payloads_(catalog, -1, 1), parts_(parts), seed_(seed) {}

  void put(PayloadKind kind, const Payload& payload, std::string& bytes) override;
  Payload get(PayloadKind kind, std::string_view bytes) override;

 private:
  Payload get_part(std::string_view bytes) const;
  Payload get_result(std::string_view bytes) const;

  const Catalog& catalog_;
  RemotePayloads payloads_;
  const int64_t parts_;
  const uint64_t seed_;
};

}  // namespace lockstep::internal::server
