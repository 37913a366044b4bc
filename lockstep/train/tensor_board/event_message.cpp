#include "lockstep/train/tensor_board/event_message.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "lockstep/data/formats/records/crc32c.h"

namespace lockstep::internal::inline train {

namespace {

/// How protobuf writes a value, the low three bits of a key.
enum Wire : unsigned { kVarint = 0, kEightBytes = 1, kLengthAndBytes = 2 };

uint64_t key(int field, Wire wire) { return (static_cast<uint64_t>(field) << 3) | wire; }

static_assert(std::endian::native == std::endian::little, "event files are little-endian");
template <class T>
void append(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::array<char, sizeof value> raw;
  std::memcpy(raw.data(), &value, sizeof value);
  bytes.append(raw.data(), raw.size());
}

}  // namespace

void ProtoMessage::varint(uint64_t value) {
  for (; value > 0x7f; value >>= 7) text_ += static_cast<char>((value & 0x7f) | 0x80);
  text_ += static_cast<char>(value);
}

ProtoMessage& ProtoMessage::integer(int field, int64_t value) {
  varint(key(field, kVarint));
  varint(static_cast<uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::real(int field, double value) {
  varint(key(field, kEightBytes));
  append(text_, value);
  return *this;
}

ProtoMessage& ProtoMessage::bytes(int field, std::string_view value) {
  varint(key(field, kLengthAndBytes));
  varint(value.size());
  text_ += value;
  return *this;
}

ProtoMessage SummaryMessage::tensor(Dtype dtype, std::initializer_list<int64_t> shape) {
  ProtoMessage dimensions;
  for (const int64_t size : shape) dimensions.bytes(2, ProtoMessage().integer(1, size).text());
  return ProtoMessage().integer(1, static_cast<int64_t>(dtype)).bytes(2, dimensions.text());
}

void SummaryMessage::add(const std::string& tag, const char* plugin, DataClass data_class, const ProtoMessage& tensor) {
  ProtoMessage value;
  value.bytes(1, tag);
  if (known_.insert(tag).second) {
    const ProtoMessage plugin_data = ProtoMessage().bytes(1, plugin);
    value.bytes(9, ProtoMessage().bytes(1, plugin_data.text()).integer(4, static_cast<int64_t>(data_class)).text());
  }
  message_.bytes(1, value.bytes(8, tensor.text()).text());
}

void SummaryMessage::scalar(const std::string& tag, double value) {
  std::string packed;
  append(packed, static_cast<float>(value));
  add(tag, "scalars", DataClass::kScalar, tensor(Dtype::kFloat, {}).bytes(5, packed));
}

void SummaryMessage::histogram(const std::string& tag, std::span<const HistogramBucket> buckets) {
  std::string content;
  for (const HistogramBucket& bucket : buckets) {
    append(content, bucket.left);
    append(content, bucket.right);
    append(content, bucket.count);
  }
  add(tag, "histograms", DataClass::kTensor,
      tensor(Dtype::kDouble, {static_cast<int64_t>(buckets.size()), 3}).bytes(4, content));
}

void SummaryMessage::text(const std::string& tag, std::string_view markdown) {
  add(tag, "text", DataClass::kTensor, tensor(Dtype::kString, {}).bytes(8, markdown));
}

void SummaryMessage::images(const std::string& tag, int64_t width, int64_t height, std::span<const std::string> pngs) {
  ProtoMessage blobs = tensor(Dtype::kString, {2 + static_cast<int64_t>(pngs.size())});
  blobs.bytes(8, std::to_string(width)).bytes(8, std::to_string(height));
  for (const std::string& png : pngs) blobs.bytes(8, png);
  add(tag, "images", DataClass::kBlobs, blobs);
}

std::string SummaryMessage::event(int64_t step, double wall_time) const {
  return ProtoMessage().real(1, wall_time).integer(2, step).bytes(5, message_.text()).text();
}

std::string file_version_event(double wall_time) {
  const ProtoMessage writer = ProtoMessage().bytes(1, "lockstep");
  return ProtoMessage().real(1, wall_time).bytes(3, "brain.Event:2").bytes(10, writer.text()).text();
}

std::string start_event(int64_t step, double wall_time) {
  constexpr int64_t kStart = 1;
  return ProtoMessage().real(1, wall_time).integer(2, step).bytes(7, ProtoMessage().integer(1, kStart).text()).text();
}

std::string event_record(std::string_view message) {
  std::string record;
  append(record, static_cast<uint64_t>(message.size()));
  append(record, masked_crc32c(record));
  record += message;
  append(record, masked_crc32c(message));
  return record;
}

}  // namespace lockstep::internal::train
