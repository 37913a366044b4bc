// What one other worker and this one exchange in calls.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/message.h"
#include "lockstep/comm/network/wire/channel.h"
#include "lockstep/comm/window_table.h"
#include "lockstep/comm/windows.h"

namespace lockstep::internal::inline comm {

/// Moves this worker's part of one call to the other worker, and the other's part to this one, as far as goes without
/// waiting. After the bytes of a call each says to the other that it has taken the call. Between calls
/// each may put bytes into the other's windows, which move until the next call is over. One thread at a time uses it.
class DataStream {
 public:
  /// `channel` carries the bytes between worker `self` and worker `other`.
  DataStream(int64_t self, int64_t other, std::unique_ptr<Channel> channel);

  /// What comes for this worker's windows goes to those of `table`, which outlives the stream. Without it all is lost.
  void set_windows(WindowTable* table) { windows_ = table; }
  /// Sends the bytes to a window of the other worker, before all that a later call sends. Between calls.
  void put(uint64_t window, uint64_t offset, Windows::Bytes bytes);

  /// Begins a call, in which each of what follows happens at most once, and in this order for each direction. What has
  /// come before it is expected waits.
  void begin(uint64_t call);
  /// The bytes live until has_sent().
  void send(MessageHead::Kind kind, std::span<const std::byte> bytes);
  /// Bytes go to `place`, whose size they must have, and a record to `record`, which gets its size. Each lives until
  /// has_received(), or until the call has failed.
  void expect(std::span<std::byte> place);
  void expect(std::string& record, uint64_t longest = kLongestRecord);
  /// Tells the other worker that this one has taken the call: all that was sent to it.
  void send_taken();
  void expect_taken() { expects_taken_ = true; }

  /// Moves what can be moved, up to a bound. True where it stopped there, and there may be more of which poll() does
  /// not know.
  bool advance();

  /// Whether all of the message that was expected is here.
  bool has_received() const { return !expects_head_ && got_ == place_.size(); }
  /// Whether its beginning is here: the other worker has come to the call.
  bool has_begun() const { return !expects_head_; }
  /// Whether the other worker has said that it has taken the call, where that was expected.
  bool is_taken() const { return !expects_taken_; }
  /// Whether all that this worker has to say in the call is on its way. What it has put before goes out before that; on
  /// a stream on which it says nothing it may still be here, because the other worker may not look for it.
  bool has_sent() const { return sent_ == bytes_.size() && small_sent_ == small_.size() && !must_flush_; }

  /// Whether something that was put is not on its way yet.
  bool has_puts() const { return !outgoing_puts_.empty(); }
  /// How many bytes have come, of whatever.
  uint64_t bytes_read() const { return bytes_read_; }

  int64_t other() const { return other_; }
  /// What the other worker has done wrong, such as a message of another size; empty while all is well.
  const std::string& problem() const { return problem_; }
  /// Why the channel broke; empty while it has not. Then nothing moves any more.
  const std::string& broken() const { return broken_; }

  /// Before a sleep until advance() can do something, as Channel::watch().
  std::chrono::nanoseconds watch(std::vector<pollfd>& files) {
    return channel_->watch(broken_.empty() && !has_written(), files);
  }

 private:
  bool has_written() const { return sent_ == bytes_.size() && small_sent_ == small_.size() && !has_puts(); }
  void expect(MessageHead::Kind kind, std::span<std::byte> place, std::string* record, uint64_t longest);
  bool write_some();
  bool read_some();
  Transfer read(std::span<std::byte> place);
  void parse();
  void read_head(const MessageHead& head);
  void begin_put(const MessageHead& head, uint64_t offset);
  void end_put();
  bool write_some_of_put();
  bool is_broken_by(const Transfer& transfer);

  const int64_t self_;
  const int64_t other_;
  const std::unique_ptr<Channel> channel_;
  std::string broken_;
  std::string problem_;
  uint64_t call_ = 0;

  struct OutgoingPut {
    std::array<std::byte, sizeof(MessageHead) + sizeof(uint64_t)> head;
    Windows::Bytes bytes;
    std::size_t sent = 0;  // of both
  };
  struct IncomingPut {
    uint64_t window = 0;
    WindowTable::Place place = {};  // without memory the bytes are lost
    uint64_t left = 0;              // bytes that have not come
    bool is_on = false;
  };

  WindowTable* windows_ = nullptr;
  std::deque<OutgoingPut> outgoing_puts_;  // go out before anything else
  IncomingPut incoming_put_;

  // What goes out: first the small bytes, which are a head and perhaps the beginning of the large ones. Then the rest.
  std::vector<std::byte> small_;
  std::size_t small_sent_ = 0;
  std::span<const std::byte> bytes_;
  std::size_t sent_ = 0;
  bool must_flush_ = false;  // nobody may move the bytes on after the call

  // What comes in: bytes that are read and not looked at, then the place of what is expected.
  std::vector<std::byte> inbox_;
  std::size_t inbox_begin_ = 0;
  std::size_t inbox_end_ = 0;
  MessageHead::Kind kind_ = MessageHead::Kind::kRecord;
  std::span<std::byte> place_;
  std::string* record_ = nullptr;
  uint64_t longest_ = 0;  // bytes of the record
  bool expects_head_ = false;
  bool expects_taken_ = false;
  std::size_t got_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace lockstep::internal::comm
