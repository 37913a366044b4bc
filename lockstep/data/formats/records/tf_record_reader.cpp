// TensorFlow's TFRecord format: a length of 8 bytes, its masked CRC-32C, the data, and its masked CRC-32C, all numbers
// in little-endian.
#include <string_view>
#include <utility>

#include "lockstep/data/formats/records/crc32c.h"
#include "lockstep/data/formats/records/readers.h"

namespace lockstep::internal::inline data {

namespace {

uint64_t little_endian(const char* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

class TfRecordReader final : public ReaderBase {
 public:
  TfRecordReader(Input input, const lockstep::data::RecordPlace& at, int64_t max_bytes)
      : ReaderBase(std::move(input), at, max_bytes) {}

 private:
  bool read(std::string& bytes) override {
    char header[12];
    const std::size_t got = input_.read(header, sizeof header);
    if (got == 0) return false;
    if (got < sizeof header) throw_bad(fmt::format("the file ends after {} of its first {} bytes", got, sizeof header));
    const uint64_t length = little_endian(header, 8);
    check({header, 8}, header + 8, "length");
    if (length > max_bytes_) {
      if (input_.skip(length) == length && input_.skip(4) == 4) move_on(input_.offset());
      throw_bad(fmt::format("its length is {} bytes, above the limit of {}", length, max_bytes_));
    }
    const uint64_t there = input_.append(bytes, length);
    if (there < length) {
      throw_bad(fmt::format("its length is {} bytes, and the file ends after {} of them", length, there));
    }
    char checksum[4];
    if (input_.read(checksum, sizeof checksum) < sizeof checksum) throw_bad("the file ends within its checksum");
    move_on(input_.offset());
    check(bytes, checksum, "data");
    return true;
  }

  void check(std::string_view bytes, const char* stored_bytes, const char* what) const {
    const auto stored = static_cast<uint32_t>(little_endian(stored_bytes, 4));
    const uint32_t computed = masked_crc32c(bytes);
    if (computed == stored) return;
    throw_bad(fmt::format("the checksum of its {} is {:#010x}, and {:#010x} is stored", what, computed, stored));
  }
};

}  // namespace

bool is_tf_record(std::string_view first) {
  return first.size() >= 12 && masked_crc32c(first.substr(0, 8)) == little_endian(first.data() + 8, 4);
}

std::unique_ptr<lockstep::data::RecordReader> make_tf_record_reader(Input input, const lockstep::data::RecordPlace& at,
                                                                    int64_t max_bytes) {
  return std::make_unique<TfRecordReader>(std::move(input), at, max_bytes);
}

}  // namespace lockstep::internal::data
