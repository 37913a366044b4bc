#include "lockstep/server/protocol/wire.h"

#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline server {
namespace {

/// The parts of a message are listed once, in fields() below, for the writer and the reader alike.
class FieldWriter {
 public:
  FieldWriter(std::string& bytes, PayloadCodec& codec) : bytes_(bytes), writer_(bytes), codec_(codec) {}

  template <PlainBytes T>
  void number(const T& value) {
    writer_.put(value);
  }
  void flag(bool value) { writer_.put(uint8_t{value}); }
  template <class Enum>
  void choice(Enum value, Enum /*last*/) {
    writer_.put(static_cast<uint8_t>(value));
  }
  void step_or_none(const std::optional<int64_t>& step) {
    flag(step.has_value());
    number(step.value_or(0));
  }
  void payload(PayloadKind kind, const Payload& payload) {
    flag(payload != nullptr);
    if (!payload) return;
    // As a text, in place: it may be megabytes.
    const std::size_t at = bytes_.size();
    writer_.put(uint64_t{0});
    codec_.put(kind, payload, bytes_);
    const uint64_t size = bytes_.size() - at - sizeof(uint64_t);
    std::memcpy(bytes_.data() + at, &size, sizeof size);
  }
  template <class T, class Each>
  void list(const std::vector<T>& values, std::size_t /*bytes_of_each*/, const Each& each) {
    writer_.put(uint64_t{values.size()});
    for (const T& value : values) each(value);
  }

 private:
  std::string& bytes_;
  ByteWriter writer_;
  PayloadCodec& codec_;
};

class FieldReader {
 public:
  FieldReader(MessageReader& reader, PayloadCodec& codec) : reader_(reader), codec_(codec) {}

  template <PlainBytes T>
  void number(T& value) {
    value = reader_.get<T>();
  }
  void flag(bool& value) {
    const auto byte = reader_.get<uint8_t>();
    reader_.expect(byte <= 1);
    value = byte == 1;
  }
  template <class Enum>
  void choice(Enum& value, Enum last) {
    const auto byte = reader_.get<uint8_t>();
    reader_.expect(byte <= static_cast<uint8_t>(last));
    value = static_cast<Enum>(byte);
  }
  void step_or_none(std::optional<int64_t>& step) {
    bool is_there = false;
    flag(is_there);
    const auto value = reader_.get<int64_t>();
    reader_.expect(is_there || value == 0);
    if (is_there) step = value;
  }
  void payload(PayloadKind kind, Payload& payload) {
    bool is_there = false;
    flag(is_there);
    if (is_there) payload = codec_.get(kind, reader_.get_text());
  }
  template <class T, class Each>
  void list(std::vector<T>& values, std::size_t bytes_of_each, const Each& each) {
    const std::size_t count = reader_.get_count(bytes_of_each);
    for (std::size_t at = 0; at < count; ++at) each(values.emplace_back());
  }

 private:
  MessageReader& reader_;
  PayloadCodec& codec_;
};

// What messages are made of. `To` is a FieldWriter and `Message` const, or it is a FieldReader.

template <class To, class Step>
void step_fields(To& to, Step& step) {
  to.number(step.step);
  to.number(step.attempt);
}

template <class To, class Id>
void worker_fields(To& to, Id& id) {
  to.number(id.worker);
  to.number(id.incarnation);
}

template <class To, class Entry>
void entry_fields(To& to, Entry& entry) {
  to.choice(entry.kind, LogEntry::Kind::kRelease);
  to.flag(entry.apply);
  to.number(entry.attempt);
  to.number(entry.number);
  to.number(entry.coefficient);
  to.payload(entry.kind == LogEntry::Kind::kChange ? PayloadKind::kChange : PayloadKind::kRates, entry.payload);
}
constexpr std::size_t kLeastBytesOfEntry = 1 + 1 + 4 + 8 + 8 + 1;

/// What `Type` is, of a message that may be const.
template <class Type, class Message>
constexpr bool kIs = std::is_same_v<std::remove_const_t<Message>, Type>;

template <class To, class Message>
void fields(To& to, Message& message) {
  to.number(message.epoch);
  if constexpr (kIs<GiveStep, Message>) {
    worker_fields(to, message.to);
    to.number(message.number);
    to.number(message.reports_noted);
    step_fields(to, message.step);
    to.number(message.kind);
    to.number(message.position);
    to.flag(message.follows_own);
    to.payload(PayloadKind::kArguments, message.arguments);
  } else if constexpr (kIs<WithdrawStep, Message>) {
    worker_fields(to, message.to);
    step_fields(to, message.step);
  } else if constexpr (kIs<ReportsNoted, Message>) {
    worker_fields(to, message.to);
    to.number(message.reports);
  } else if constexpr (kIs<WorkerReplaced, Message>) {
    worker_fields(to, message.to);
  } else if constexpr (kIs<PulledValues, Message>) {
    worker_fields(to, message.to);
    to.number(message.server);
    step_fields(to, message.step);
    to.number(message.number);
    to.number(message.position);
    to.payload(PayloadKind::kValues, message.values);
  } else if constexpr (kIs<PushAnswer, Message>) {
    worker_fields(to, message.to);
    to.number(message.server);
    step_fields(to, message.step);
    to.choice(message.verdict, PushVerdict::kRefused);
    to.payload(PayloadKind::kError, message.error);
  } else if constexpr (kIs<StepReport, Message>) {
    worker_fields(to, message.from);
    to.number(message.number);
    step_fields(to, message.step);
    to.choice(message.outcome, StepOutcome::kWithdrawn);
    to.flag(message.pushed);
    to.flag(message.apply);
    to.number(message.coefficient);
    to.payload(message.outcome == StepOutcome::kDone ? PayloadKind::kResult : PayloadKind::kError, message.payload);
    to.list(message.pulled, 4 + 4 + 8, [&](auto& one) {
      to.number(one.pull);
      to.number(one.server);
      to.number(one.position);
    });
    to.number(message.data);
    to.number(message.push);
  } else if constexpr (kIs<ServerRead, Message>) {
    to.number(message.server);
    to.number(message.position);
  } else if constexpr (kIs<RoundSquares, Message>) {
    to.number(message.server);
    to.number(message.round);
    to.payload(PayloadKind::kSquares, message.squares);
  } else if constexpr (kIs<CutSaved, Message>) {
    to.number(message.server);
    to.number(message.cut);
    to.payload(PayloadKind::kSaved, message.saved);
  } else if constexpr (kIs<PullRequest, Message>) {
    worker_fields(to, message.from);
    step_fields(to, message.step);
    to.number(message.number);
    to.number(message.position);
    to.step_or_none(message.after);
    to.payload(PayloadKind::kRequest, message.request);
  } else if constexpr (kIs<PushRequest, Message>) {
    worker_fields(to, message.from);
    step_fields(to, message.step);
    to.payload(PayloadKind::kPush, message.push);
  } else {
    static_assert(kIs<LogEntries, Message>);
    to.number(message.first);
    to.list(message.entries, kLeastBytesOfEntry, [&](auto& entry) { entry_fields(to, entry); });
    to.number(message.floor);
  }
}

template <class Variant>
std::string bytes_of(const Variant& message, PayloadCodec& codec, std::string bytes) {
  FieldWriter writer(bytes, codec);
  writer.number(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& one) { fields(writer, one); }, message);
  return bytes;
}

/// Reads the alternative with this index, of those from `At` on.
template <class Variant, std::size_t At = 0>
Variant alternative(std::size_t index, MessageReader& reader, PayloadCodec& codec) {
  if constexpr (At < std::variant_size_v<Variant>) {
    if (index != At) return alternative<Variant, At + 1>(index, reader, codec);
    std::variant_alternative_t<At, Variant> message;
    FieldReader from(reader, codec);
    fields(from, message);
    reader.expect_end();
    return message;
  } else {
    reader.refuse();
  }
}

template <class Variant>
Variant message_of_bytes(std::string_view bytes, int64_t worker, const char* what, PayloadCodec& codec) {
  MessageReader reader(bytes, worker, what);
  const auto index = reader.get<uint8_t>();
  return alternative<Variant>(index, reader, codec);
}

}  // namespace

std::string to_bytes(const ChiefMessage& message, PayloadCodec& codec, std::string begin) {
  return bytes_of(message, codec, std::move(begin));
}
std::string to_bytes(const ServerMessage& message, PayloadCodec& codec, std::string begin) {
  return bytes_of(message, codec, std::move(begin));
}
std::string to_bytes(const WorkerMessage& message, PayloadCodec& codec, std::string begin) {
  return bytes_of(message, codec, std::move(begin));
}

ChiefMessage chief_message(std::string_view bytes, int64_t worker, PayloadCodec& codec) {
  return message_of_bytes<ChiefMessage>(bytes, worker, "a message to the chief", codec);
}
ServerMessage server_message(std::string_view bytes, int64_t worker, PayloadCodec& codec) {
  return message_of_bytes<ServerMessage>(bytes, worker, "a message to a parameter server", codec);
}
WorkerMessage worker_message(std::string_view bytes, PayloadCodec& codec) {
  return message_of_bytes<WorkerMessage>(bytes, -1, "a message of the chief or of a parameter server", codec);
}

}  // namespace lockstep::internal::server
