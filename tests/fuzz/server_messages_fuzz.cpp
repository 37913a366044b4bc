// Any bytes as a message of a task of a parameter-server run, for machines that have just begun. The first byte of the
// input says for which.
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/server/protocol/chief_machine.h"
#include "lockstep/server/protocol/server_machine.h"
#include "lockstep/server/protocol/wire.h"
#include "lockstep/server/protocol/worker_machine.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep::internal;
using lockstep::fuzz::check;

/// Payloads are the bytes that they came as.
class BytesCodec final : public PayloadCodec {
 public:
  void put(PayloadKind /*kind*/, const Payload& payload, std::string& bytes) override {
    bytes += *static_cast<const std::string*>(payload.get());
  }
  Payload get(PayloadKind /*kind*/, std::string_view bytes) override { return std::make_shared<std::string>(bytes); }
};

/// Applies nothing.
class EmptyStore final : public ServerStore {
 public:
  Payload hold(const HeldPush& /*push*/) override { return {}; }
  void drop(const HeldPush& /*push*/) override {}
  void commit(const LogEntry& /*entry*/, const HeldPush& /*push*/) override {}
  Payload squares(const LogEntry& /*entry*/, std::span<const HeldPush> /*parts*/) override { return {}; }
  void round(const LogEntry& /*entry*/, std::span<const HeldPush> /*parts*/) override {}
  void change(const LogEntry& /*entry*/) override {}
  void freeze(const LogEntry& /*entry*/) override {}
  void release(const LogEntry& /*entry*/) override {}
  Payload answer(const PullRequest& /*pull*/, Position /*position*/) override { return {}; }
};

void to_chief(std::string_view bytes, BytesCodec& codec) {
  const ChiefMessage message = chief_message(bytes, 3, codec);
  check(to_bytes(message, codec) == bytes, "a message is what its bytes are");
  ChiefMachine chief({.workers = 2, .servers = 2, .staleness = 0, .squares = true});
  ChiefOutput out;
  chief.worker_joined(0, out);
  for (int k = 0; k < 3; ++k) chief.schedule({});
  chief.begin_cut(1);
  chief.collect(out);
  chief.receive(message, out);
  chief.collect(out);
  check(chief.steps() <= 1, "no message counts more than its step");
}

void to_server(std::string_view bytes, BytesCodec& codec) {
  const ServerMessage message = server_message(bytes, 3, codec);
  check(to_bytes(message, codec) == bytes, "a message is what its bytes are");
  ServerMachine server(1, 0);
  EmptyStore store;
  ServerOutput out;
  server.receive(PushRequest{.epoch = 1}, store, out);
  server.receive(message, store, out);
  try {
    while (server.has_entries()) server.read_entry(store, out);
  } catch (const lockstep::InternalError& error) {
    lockstep::fuzz::check_message(error);  // entries of no chief of ours
  }
}

void to_worker(std::string_view bytes, BytesCodec& codec) {
  const WorkerMessage message = worker_message(bytes, codec);
  check(to_bytes(message, codec) == bytes, "a message is what its bytes are");
  WorkerMachine worker(1, {.worker = 0, .incarnation = 1}, 2);
  WorkerOutput out;
  worker.receive(GiveStep{.epoch = 1, .to = worker.id(), .number = 1}, out);
  worker.pull(0, {}, out);
  worker.push({{}, {}}, out);
  worker.receive(message, out);
  check(out.to_chief.size() <= 1, "no message ends more than a step that waits");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  BytesCodec codec;
  try {
    if (data[0] % 3 == 0) {
      to_chief(bytes, codec);
    } else if (data[0] % 3 == 1) {
      to_server(bytes, codec);
    } else {
      to_worker(bytes, codec);
    }
  } catch (const lockstep::PeerError& error) {
    lockstep::fuzz::check_message(error);
  }
  return 0;
}
