#include "lockstep/data/formats/images/idx_file.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline data {

namespace {

uint32_t read_word(Input& input) {
  char bytes[4];
  if (input.read(bytes, sizeof bytes) != sizeof bytes) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' ends at byte {}, within its header", input.name(), input.offset()),
                    "get the file again");
  }
  uint32_t word = 0;
  for (const char byte : bytes) word = word << 8 | static_cast<unsigned char>(byte);
  return word;
}

}  // namespace

IdxFile read_idx_file(Input input, IdxKind kind) {
  const auto magic = static_cast<uint32_t>(kind);
  const uint32_t found = read_word(input);
  if (found != magic) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' is not an IDX file of {}: it begins with {:#010x} instead of {:#010x}",
                                input.name(), kind == IdxKind::kImages ? "images" : "labels", found, magic),
                    "give a folder with MNIST's IDX files");
  }
  IdxFile file;
  int64_t promised = 1;
  for (uint32_t d = 0; d < (magic & 0xff); ++d) {
    file.sizes.push_back(read_word(input));
    if (__builtin_mul_overflow(promised, file.sizes.back(), &promised)) promised = INT64_MAX;
  }
  if (input.append(file.bytes, static_cast<uint64_t>(promised)) < static_cast<uint64_t>(promised)) {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' holds {} bytes of data where its header promises {}", input.name(),
                                file.bytes.size(), promised),
                    "get the file again: it is cut off");
  }
  if (!input.peek().empty()) {
    throw DataError(
        "LS-DATA-FILE",
        fmt::format("'{}' holds more than the {} bytes of data that its header promises", input.name(), promised),
        "get the file again");
  }
  return file;
}

}  // namespace lockstep::internal::data
