// Any bytes as a TFRecord file, and any bytes as records of one.
#include "lockstep/data/formats/records/crc32c.h"
#include "tests/fuzz/record_promises.h"

namespace {

std::string number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

/// A record with right checksums that says it has `length` bytes.
std::string framed(const std::string& bytes, uint64_t length) {
  using lockstep::internal::masked_crc32c;
  const std::string text = number(length, 8);
  return text + number(masked_crc32c(text), 4) + bytes + number(masked_crc32c(bytes), 4);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  fuzz::read_all(fuzz::at_place(&internal::make_tf_record_reader), bytes, 100);
  // Each record: a byte that is its size, one that says what is wrong with it, and its data.
  std::string file;
  std::vector<std::string> good;
  bool goes_on = true;
  for (std::size_t at = 0; goes_on && at + 2 <= size;) {
    const std::size_t length = std::min<std::size_t>(data[at], size - at - 2);
    const uint8_t wrong = data[at + 1];
    std::string record = bytes.substr(at + 2, length);
    at += 2 + length;
    const uint64_t said = wrong == 1 ? uint64_t{256} << (length % 55) : record.size();
    goes_on = said == record.size();
    if (goes_on && record.size() <= 100 && wrong != 2) good.push_back(record);
    std::string frame = framed(record, said);
    if (wrong == 2) frame.back() = static_cast<char>(frame.back() ^ 1);
    file += frame;
  }
  std::size_t found = 0;
  for (const fuzz::Read& one : fuzz::read_all(fuzz::at_place(&internal::make_tf_record_reader), file, 100)) {
    if (!one.good) continue;
    fuzz::check(found < good.size() && one.bytes == good[found], "what is read is what was written");
    ++found;
  }
  fuzz::check(found == good.size(), "what was written is read");
  return 0;
}
