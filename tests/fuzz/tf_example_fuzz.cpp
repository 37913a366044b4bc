// Any bytes as a tf.train.Example.
#include "lockstep/data/sources/record_files.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7f) | 0x80);
  return text + static_cast<char>(value);
}

std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}

std::string written(const lockstep::data::TfExample& example) {
  std::string features;
  for (const auto& [name, feature] : example) {
    std::string list;
    for (const std::string& one : feature.bytes) list += field(1, one);
    if (!feature.floats.empty()) {
      list = field(1, {reinterpret_cast<const char*>(feature.floats.data()), 4 * feature.floats.size()});
    }
    for (const int64_t one : feature.ints) list += varint(1 << 3) + varint(static_cast<uint64_t>(one));
    const int kind = static_cast<int>(feature.kind);
    features += field(1, field(1, name) + field(2, kind == 0 ? "" : field(kind, list)));
  }
  return field(1, features);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  using namespace lockstep;
  fuzz::is_value_or_data_error([&] {
    const data::TfExample example = data::parse_tf_example({reinterpret_cast<const char*>(bytes), size});
    const std::string text = written(example);
    fuzz::check(written(data::parse_tf_example(text)) == text, "what is read is written so that it reads the same");
  });
  return 0;
}
