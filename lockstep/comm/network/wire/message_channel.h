// The bytes of calls as messages of a plug-in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/comm/messenger.h"
#include "lockstep/comm/network/wire/channel.h"

namespace lockstep::internal::inline comm {

/// Copies bytes into messages and out of them. All messages lie in memory of the messenger, and never in that of the
/// caller: where a worker dies, nobody can be sure that its last message is not still being written, and the caller may
/// have freed its memory by then.
class MessageChannel final : public Channel {
 public:
  /// Between this worker and worker `other`. `messenger` has the others' addresses.
  MessageChannel(std::shared_ptr<Messenger> messenger, int64_t other, int64_t num_workers);

  Transfer read(std::span<std::byte> place) override;
  Transfer write(std::span<const std::byte> bytes) override;
  bool flush() override;
  std::chrono::nanoseconds watch(bool for_room, std::vector<pollfd>& files) override;

 private:
  static constexpr std::size_t kMessages = 4;
  /// Used in turn, in the order in which messages are sent and come.
  using Ring = std::array<Message*, kMessages>;

  const std::shared_ptr<Messenger> messenger_;
  const int64_t other_;
  Ring outgoing_ = {};
  Ring incoming_ = {};
  std::size_t next_out_ = 0;
  std::size_t next_in_ = 0;
  std::size_t taken_ = 0;  // of the message that has come
};

}  // namespace lockstep::internal::comm
