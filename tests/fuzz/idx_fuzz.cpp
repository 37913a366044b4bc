// Any bytes as an IDX file.
#include "lockstep/data/formats/images/idx_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::string word(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using internal::IdxKind;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const IdxKind kind : {IdxKind::kImages, IdxKind::kLabels}) {
    fuzz::is_value_or_data_error([&] {
      const internal::IdxFile file = internal::read_idx_file({"input", bytes, 0}, kind);
      fuzz::check(file.sizes.size() == (kind == IdxKind::kImages ? 3 : 1), "a file has the dimensions of its kind");
      std::string again = word(static_cast<uint32_t>(kind));
      for (const int64_t one : file.sizes) again += word(static_cast<uint32_t>(one));
      fuzz::check(again + file.bytes == bytes, "a file is its header and its elements, and nothing else");
      std::size_t elements = 1;
      for (const int64_t one : file.sizes) elements *= static_cast<std::size_t>(one);
      fuzz::check(elements == file.bytes.size(), "there are as many elements as the sizes say");
    });
  }
  return 0;
}
