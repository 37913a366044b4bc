// tf.train.Example in protobuf's wire format: Example{Features 1}, Features{map<string, Feature> 1}, Feature{BytesList
// 1, FloatList 2, Int64List 3}, each list{repeated value 1}; numbers packed or one by one.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/sources/record_files.h"

namespace lockstep::data {

namespace {

enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// A message, field by field. Offsets in errors count from the beginning of the record.
class Message {
 public:
  Message(std::string_view bytes, std::size_t offset) : bytes_(bytes), offset_(offset) {}

  /// Goes to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const std::size_t begin = at_;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    const uint64_t wire = tag & 7;
    if (field_ == 0 || tag > UINT32_MAX) fail(begin, "a field of a number that protobuf does not have");
    wire_ = static_cast<Wire>(wire);
    value_at_ = at_;
    switch (wire_) {
      case Wire::kVarint: number_ = varint(); return true;
      case Wire::kFixed64: take(8); return true;
      case Wire::kFixed32: take(4); return true;
      case Wire::kBytes: {
        const uint64_t length = varint();
        value_at_ = at_;
        take(length);
        return true;
      }
    }
    fail(begin, fmt::format("wire type {}, which proto3 does not have", wire));
  }

  bool is(uint64_t field, Wire wire) const { return field_ == field && wire_ == wire; }
  std::string_view bytes() const { return bytes_.substr(value_at_, at_ - value_at_); }
  uint64_t number() const { return number_; }
  Message message() const { return {bytes(), offset_ + value_at_}; }

  bool at_end() const { return at_ == bytes_.size(); }
  uint64_t varint() {
    const std::size_t begin = at_;
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail(begin, "a number that is cut off");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail(begin, "a number of more than 10 bytes");
  }
  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw DataError("LS-DATA-RECORD",
                    fmt::format("a record is no tf.train.Example: at its byte {} stands {}", offset_ + at, what),
                    "check what the file holds, or get it again");
  }
  [[noreturn]] void fail_in_value(const std::string& what) const { fail(value_at_, what); }

 private:
  void take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail(at_, fmt::format("a field of {} bytes, where {} are left", count, bytes_.size() - at_));
    }
    at_ += static_cast<std::size_t>(count);
  }

  std::string_view bytes_;
  std::size_t offset_;
  std::size_t at_ = 0;
  std::size_t value_at_ = 0;
  uint64_t field_ = 0;
  uint64_t number_ = 0;
  Wire wire_ = Wire::kVarint;
};

float float_at(const char* bytes) {
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void read_bytes(Message list, TfFeature& feature) {
  while (list.next()) {
    if (list.is(1, Wire::kBytes)) feature.bytes.emplace_back(list.bytes());
  }
}

void read_floats(Message list, TfFeature& feature) {
  while (list.next()) {
    if (list.is(1, Wire::kFixed32)) feature.floats.push_back(float_at(list.bytes().data()));
    if (!list.is(1, Wire::kBytes)) continue;
    const std::string_view packed = list.bytes();
    if (packed.size() % 4 != 0) list.fail_in_value(fmt::format("a list of float32 of {} bytes", packed.size()));
    for (std::size_t at = 0; at < packed.size(); at += 4) feature.floats.push_back(float_at(packed.data() + at));
  }
}

void read_ints(Message list, TfFeature& feature) {
  while (list.next()) {
    if (list.is(1, Wire::kVarint)) feature.ints.push_back(static_cast<int64_t>(list.number()));
    if (!list.is(1, Wire::kBytes)) continue;
    Message packed = list.message();
    while (!packed.at_end()) feature.ints.push_back(static_cast<int64_t>(packed.varint()));
  }
}

/// A list that comes twice goes on; of different lists the last one counts, as protobuf has it.
void read_feature(Message message, TfFeature& feature) {
  using Kind = TfFeature::Kind;
  while (message.next()) {
    const Kind kind = message.is(1, Wire::kBytes)   ? Kind::kBytes
                      : message.is(2, Wire::kBytes) ? Kind::kFloats
                      : message.is(3, Wire::kBytes) ? Kind::kInts
                                                    : Kind::kNone;
    if (kind == Kind::kNone) continue;
    if (kind != feature.kind) feature = TfFeature{.kind = kind};
    if (kind == Kind::kBytes) read_bytes(message.message(), feature);
    if (kind == Kind::kFloats) read_floats(message.message(), feature);
    if (kind == Kind::kInts) read_ints(message.message(), feature);
  }
}

void read_entry(Message entry, TfExample& example) {
  std::string name;
  TfFeature feature;
  while (entry.next()) {
    if (entry.is(1, Wire::kBytes)) name = entry.bytes();
    if (entry.is(2, Wire::kBytes)) read_feature(entry.message(), feature);
  }
  example[std::move(name)] = std::move(feature);
}

}  // namespace

TfExample parse_tf_example(std::string_view record) {
  TfExample result;
  Message example(record, 0);
  while (example.next()) {
    if (!example.is(1, Wire::kBytes)) continue;
    Message features = example.message();
    while (features.next()) {
      if (features.is(1, Wire::kBytes)) read_entry(features.message(), result);
    }
  }
  return result;
}

}  // namespace lockstep::data
