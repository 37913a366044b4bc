// The messages in TensorBoard's event files, as protobuf would write them. An event has values of a summary: scalars,
// histograms, texts, images.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::internal::inline train {

/// The bytes of a protobuf message, field by field: a key, which is the field's number and how its value is written,
/// then the value.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, int64_t value);
  ProtoMessage& real(int field, double value);
  ProtoMessage& bytes(int field, std::string_view value);  // of a text, of a message within, or packed
  const std::string& text() const { return text_; }

 private:
  void varint(uint64_t value);
  std::string text_;
};

/// Buckets of a histogram: `left` belongs to it, `right` only to the last one.
struct HistogramBucket {
  double left = 0;
  double right = 0;
  double count = 0;
};

/// The values that one event adds at one step. It writes a tag's metadata, without which TensorBoard does not know what
/// the values are, where `known` does not have the tag yet, and adds it there.
class SummaryMessage {
 public:
  explicit SummaryMessage(std::set<std::string>& known) : known_(known) {}

  void scalar(const std::string& tag, double value);  // kept as float32
  void histogram(const std::string& tag, std::span<const HistogramBucket> buckets);
  void text(const std::string& tag, std::string_view markdown);
  /// All of one size; `pngs` are whole files.
  void images(const std::string& tag, int64_t width, int64_t height, std::span<const std::string> pngs);

  bool empty() const { return message_.text().empty(); }
  std::string event(int64_t step, double wall_time) const;

 private:
  /// The numbers that TensorBoard has for kinds of data and for dtypes.
  enum class DataClass { kScalar = 1, kTensor = 2, kBlobs = 3 };
  enum class Dtype { kFloat = 1, kDouble = 2, kString = 7 };
  static ProtoMessage tensor(Dtype dtype, std::initializer_list<int64_t> shape);
  void add(const std::string& tag, const char* plugin, DataClass data_class, const ProtoMessage& tensor);

  std::set<std::string>& known_;
  ProtoMessage message_;
};

/// The event that begins each file, and the one that says that what follows replaces all that is there from `step` on.
std::string file_version_event(double wall_time);
std::string start_event(int64_t step, double wall_time);

/// A message as a record of an event file: its length, its bytes, and a checksum of each.
std::string event_record(std::string_view message);

}  // namespace lockstep::internal::train
