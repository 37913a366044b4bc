// Messages of parameter servers as bytes, for tasks that are processes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/server/protocol/messages.h"

namespace lockstep::internal::inline server {

/// What a payload is, which says how it is made into bytes.
enum class PayloadKind : uint8_t {
  kArguments,
  kResult,   // of a step that is done: the result
  kError,    // of a step that failed, or for which a push was refused
  kRequest,  // what a pull asks for
  kValues,
  kPush,
  kRates,
  kChange,
  kSquares,
  kSaved,
};

/// Makes payloads into bytes and back. Of a null payload nothing is asked.
class PayloadCodec {
 public:
  virtual ~PayloadCodec() = default;
  /// Appends to the bytes.
  virtual void put(PayloadKind kind, const Payload& payload, std::string& bytes) = 0;
  /// Never null. Throws a PeerError where the bytes are not what put() gives: they come from another task, and are not
  /// believed. They belong to the caller.
  virtual Payload get(PayloadKind kind, std::string_view bytes) = 0;
};

/// The message as bytes, behind those of `begin`.
std::string to_bytes(const ChiefMessage& message, PayloadCodec& codec, std::string begin = {});
std::string to_bytes(const ServerMessage& message, PayloadCodec& codec, std::string begin = {});
std::string to_bytes(const WorkerMessage& message, PayloadCodec& codec, std::string begin = {});

/// The message that `worker` sent, -1 where it is another task or not known. A PeerError (LS-PEER-MESSAGE) where the
/// bytes are none. No number in them decides an allocation beyond their own length; whether steps, servers and
/// positions are ones that exist, the machines ask themselves.
ChiefMessage chief_message(std::string_view bytes, int64_t worker, PayloadCodec& codec);
ServerMessage server_message(std::string_view bytes, int64_t worker, PayloadCodec& codec);
WorkerMessage worker_message(std::string_view bytes, PayloadCodec& codec);

}  // namespace lockstep::internal::server
