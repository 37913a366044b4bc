#include "lockstep/comm/network/wire/message_channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::internal::inline comm {

namespace {

using State = Message::State;

/// All workers have the same number, and so messages of the same size.
std::size_t message_bytes(int64_t num_workers) {
  constexpr std::size_t kAll = std::size_t{64} << 20;  // the memory of all messages, but for very many workers
  constexpr std::size_t kLeast = std::size_t{16} << 10;
  constexpr std::size_t kMost = std::size_t{256} << 10;
  return std::clamp(kAll / (8 * static_cast<std::size_t>(num_workers)), kLeast, kMost);
}

Transfer failed(const Message& message) {
  return {.state = Transfer::State::kFailed, .error = EIO, .text = message.failure.c_str()};
}

}  // namespace

MessageChannel::MessageChannel(std::shared_ptr<Messenger> messenger, int64_t other, int64_t num_workers)
    : messenger_(std::move(messenger)), other_(other) {
  const std::size_t bytes = message_bytes(num_workers);
  for (Message*& message : outgoing_) message = &messenger_->new_message(bytes);
  for (Message*& message : incoming_) {
    message = &messenger_->new_message(bytes);
    messenger_->receive(other_, *message);
  }
}

Transfer MessageChannel::read(std::span<std::byte> place) {
  Message& message = *incoming_[next_in_];
  if (message.state == State::kMoving) messenger_->progress();
  if (message.state == State::kMoving) return {.state = Transfer::State::kWantsRead};
  if (message.state == State::kFailed) return failed(message);
  const std::size_t count = std::min(message.size - taken_, place.size());
  std::memcpy(place.data(), message.memory.data() + taken_, count);
  taken_ += count;
  if (taken_ == message.size) {
    taken_ = 0;
    next_in_ = (next_in_ + 1) % kMessages;
    messenger_->receive(other_, message);
  }
  return {.bytes = count};
}

Transfer MessageChannel::write(std::span<const std::byte> bytes) {
  Message& message = *outgoing_[next_out_];
  if (message.state == State::kMoving) messenger_->progress();
  if (message.state == State::kMoving) return {.state = Transfer::State::kWantsWrite};
  if (message.state == State::kFailed) return failed(message);
  message.size = std::min(bytes.size(), message.memory.size());
  std::memcpy(message.memory.data(), bytes.data(), message.size);
  messenger_->send(other_, message);
  next_out_ = (next_out_ + 1) % kMessages;
  return {.bytes = message.size};
}

bool MessageChannel::flush() { return messenger_->flush(other_); }

std::chrono::nanoseconds MessageChannel::watch(bool for_room, std::vector<pollfd>& files) {
  // What another channel has moved on since this one was looked at wakes nobody up.
  const bool has_come = incoming_[next_in_]->state != State::kMoving;
  const bool has_room = outgoing_[next_out_]->state != State::kMoving;
  if (has_come || (for_room && has_room)) return std::chrono::nanoseconds::zero();
  const Messenger::Sleep sleep = messenger_->sleep();
  // All channels of a messenger have one file.
  const bool is_new = sleep.file >= 0 && (files.empty() || files.back().fd != sleep.file);
  if (is_new) files.push_back({.fd = sleep.file, .events = POLLIN, .revents = 0});
  return sleep.longest;
}

}  // namespace lockstep::internal::comm
