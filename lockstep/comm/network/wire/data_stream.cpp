#include "lockstep/comm/network/wire/data_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline comm {

namespace {

/// Bytes that are read at once where the next ones are not known to belong to one large message.
constexpr std::size_t kInboxBytes = std::size_t{16} << 10;
/// The beginning of a message goes out together with its head, so that a short one is one packet.
constexpr std::size_t kBytesBesideHead = std::size_t{8} << 10;
/// One advance() does so many transfers at most, so that others have their turn.
constexpr int kMostTransfers = 32;

}  // namespace

DataStream::DataStream(int64_t self, int64_t other, std::unique_ptr<Channel> channel)
    : self_(self), other_(other), channel_(std::move(channel)), inbox_(kInboxBytes) {}

void DataStream::begin(uint64_t call) {
  call_ = call;
  small_.clear();
  small_sent_ = 0;
  bytes_ = {};
  sent_ = 0;
  must_flush_ = false;
  place_ = {};
  got_ = 0;
  expects_head_ = false;
  expects_taken_ = false;
}

void DataStream::send(MessageHead::Kind kind, std::span<const std::byte> bytes) {
  const MessageHead head{kind, call_, bytes.size()};
  const std::size_t beside = std::min(bytes.size(), kBytesBesideHead);
  small_.resize(sizeof(head) + beside);
  std::memcpy(small_.data(), &head, sizeof(head));
  if (beside > 0) std::memcpy(small_.data() + sizeof(head), bytes.data(), beside);
  small_sent_ = 0;
  bytes_ = bytes;
  sent_ = beside;
}

void DataStream::expect(MessageHead::Kind kind, std::span<std::byte> place, std::string* record, uint64_t longest) {
  kind_ = kind;
  place_ = place;
  record_ = record;
  longest_ = longest;
  expects_head_ = true;
  got_ = 0;
}

void DataStream::expect(std::span<std::byte> place) {
  expect(MessageHead::Kind::kBytes, place, nullptr, kLongestRecord);
}

void DataStream::expect(std::string& record, uint64_t longest) {
  expect(MessageHead::Kind::kRecord, {}, &record, longest);
}

void DataStream::put(uint64_t window, uint64_t offset, Windows::Bytes bytes) {
  const MessageHead head{MessageHead::Kind::kPut, window, bytes.bytes.size()};
  OutgoingPut& put = outgoing_puts_.emplace_back();
  std::memcpy(put.head.data(), &head, sizeof(head));
  std::memcpy(put.head.data() + sizeof(head), &offset, sizeof(offset));
  put.bytes = std::move(bytes);
}

void DataStream::send_taken() {
  const MessageHead head{MessageHead::Kind::kTaken, call_, 0};
  small_.resize(sizeof(head));
  std::memcpy(small_.data(), &head, sizeof(head));
  small_sent_ = 0;
  must_flush_ = true;
}

bool DataStream::advance() {
  bool writes = true;
  bool reads = true;
  for (int i = 0; i < kMostTransfers && (writes || reads); ++i) {
    writes = writes && write_some();
    reads = reads && read_some();
  }
  // Where the other worker has left after its last call, nothing needs to arrive any more.
  if (must_flush_ && has_written()) must_flush_ = broken_.empty() && !channel_->flush();
  return writes || reads;
}

bool DataStream::is_broken_by(const Transfer& transfer) {
  if (transfer.state == Transfer::State::kClosed) broken_ = "the other side closed it";
  if (transfer.state == Transfer::State::kFailed) {
    broken_ = transfer.text != nullptr ? transfer.text : std::strerror(transfer.error);
  }
  return !broken_.empty();
}

bool DataStream::write_some() {
  if (!broken_.empty() || has_written()) return false;
  if (!outgoing_puts_.empty()) return write_some_of_put();
  const bool is_small = small_sent_ < small_.size();
  const std::span<const std::byte> rest =
      is_small ? std::span<const std::byte>(small_).subspan(small_sent_) : bytes_.subspan(sent_);
  const Transfer transfer = channel_->write(rest);
  (is_small ? small_sent_ : sent_) += transfer.bytes;
  return !is_broken_by(transfer) && transfer.state == Transfer::State::kDone;
}

bool DataStream::write_some_of_put() {
  OutgoingPut& put = outgoing_puts_.front();
  const std::size_t head_bytes = put.head.size();
  const std::span<const std::byte> rest = put.sent < head_bytes ? std::span<const std::byte>(put.head).subspan(put.sent)
                                                                : put.bytes.bytes.subspan(put.sent - head_bytes);
  const Transfer transfer = channel_->write(rest);
  put.sent += transfer.bytes;
  if (put.sent == head_bytes + put.bytes.bytes.size()) outgoing_puts_.pop_front();
  return !is_broken_by(transfer) && transfer.state == Transfer::State::kDone;
}

Transfer DataStream::read(std::span<std::byte> place) {
  const Transfer transfer = channel_->read(place);
  bytes_read_ += transfer.bytes;
  return transfer;
}

bool DataStream::read_some() {
  parse();
  if (!broken_.empty() || !problem_.empty()) return false;
  if (incoming_put_.is_on && incoming_put_.place.owner && inbox_begin_ == inbox_end_) {
    const std::span<std::byte> memory = incoming_put_.place.memory;
    const Transfer transfer = read(memory.last(incoming_put_.left));
    incoming_put_.left -= transfer.bytes;
    if (incoming_put_.left == 0) end_put();
    return !is_broken_by(transfer) && transfer.state == Transfer::State::kDone;
  }
  const bool is_in_message = !incoming_put_.is_on && !has_received() && has_begun();
  if (is_in_message && inbox_begin_ == inbox_end_) {
    const Transfer transfer = read(place_.subspan(got_));
    got_ += transfer.bytes;
    return !is_broken_by(transfer) && transfer.state == Transfer::State::kDone;
  }
  if (inbox_begin_ > 0) {
    std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, inbox_end_ - inbox_begin_);
    inbox_end_ -= std::exchange(inbox_begin_, 0);
  }
  if (inbox_end_ == inbox_.size()) return false;  // nothing of it is expected yet
  const Transfer transfer = read(std::span(inbox_).subspan(inbox_end_));
  inbox_end_ += transfer.bytes;
  if (is_broken_by(transfer) || transfer.state != Transfer::State::kDone) return false;
  parse();
  return true;
}

/// Looks at what is in the inbox, up to the first message that is not expected yet.
void DataStream::parse() {
  while (problem_.empty()) {
    if (incoming_put_.is_on) {
      const auto count = static_cast<std::size_t>(std::min<uint64_t>(inbox_end_ - inbox_begin_, incoming_put_.left));
      if (count == 0) return;
      if (incoming_put_.place.owner) {
        std::memcpy(incoming_put_.place.memory.last(incoming_put_.left).data(), inbox_.data() + inbox_begin_, count);
      }
      inbox_begin_ += count;
      incoming_put_.left -= count;
      if (incoming_put_.left == 0) end_put();
      continue;
    }
    if (has_begun() && !has_received()) {
      const std::size_t count = std::min(inbox_end_ - inbox_begin_, place_.size() - got_);
      if (count == 0) return;
      std::memcpy(place_.data() + got_, inbox_.data() + inbox_begin_, count);
      inbox_begin_ += count;
      got_ += count;
      continue;
    }
    ByteReader reader({reinterpret_cast<const char*>(inbox_.data()) + inbox_begin_, inbox_end_ - inbox_begin_});
    MessageHead head;
    if (!reader.get(head)) return;
    if (head.kind == MessageHead::Kind::kPut) {
      uint64_t offset = 0;
      if (!reader.get(offset)) return;
      inbox_begin_ += sizeof(head) + sizeof(offset);
      begin_put(head, offset);
      continue;
    }
    if (expects_head_) {
      read_head(head);
    } else if (!expects_taken_) {
      return;
    } else if (head.kind == MessageHead::Kind::kTaken && head.call == call_ && head.size == 0) {
      expects_taken_ = false;
    } else {
      problem_ = objection_to({}, {.call = call_}, other_, self_);
    }
    inbox_begin_ += sizeof(head);
  }
}

void DataStream::begin_put(const MessageHead& head, uint64_t offset) {
  incoming_put_ = {.window = head.call, .left = head.size, .is_on = true};
  if (windows_) incoming_put_.place = windows_->place_of(head.call, other_, offset, head.size);
  if (!incoming_put_.place.fits) problem_ = objection_to_put(other_, self_, offset, head.size);
  if (head.size == 0) end_put();
}

void DataStream::end_put() {
  if (incoming_put_.place.owner) windows_->count(incoming_put_.window, other_);
  incoming_put_ = {};
}

void DataStream::read_head(const MessageHead& head) {
  ExpectedMessage expected{.kind = kind_, .call = call_, .longest = longest_};
  if (!record_) expected.size = place_.size();
  problem_ = objection_to(head, expected, other_, self_);
  if (!problem_.empty()) return;
  if (record_) {
    record_->resize(head.size);
    place_ = std::as_writable_bytes(std::span(*record_));
  }
  expects_head_ = false;
}

}  // namespace lockstep::internal::comm
