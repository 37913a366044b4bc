// Any bytes as a safetensors file: what is accepted describes every byte of it once.
#include "lockstep/checkpoint/formats/safetensors.h"

#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace lockstep::internal;
  std::array<unsigned char, kLengthBytes> first{};
  std::copy_n(data, std::min<std::size_t>(size, kLengthBytes), first.begin());
  try {
    const uint64_t length = header_length(first, size, "the file");
    fuzz::check(length <= size - kLengthBytes, "a header lies in its file");
    const std::string_view text(reinterpret_cast<const char*>(data) + kLengthBytes, length);
    const uint64_t rest = size - kLengthBytes - length;
    TensorFileHeader header = decode_header(text, rest, "the file");
    uint64_t next = 0;
    for (const TensorPlace& one : header.tensors) {
      uint64_t bytes = 0;
      fuzz::check(bytes_of(one.shape, element_size(one.dtype), bytes) && one.begin == next && one.end == next + bytes,
                  "tensors lie one behind the other");
      next = one.end;
    }
    fuzz::check(next == rest, "tensors have all bytes");
    layout(header);
    const std::string again = encode_header(header);
    fuzz::check(decode_header(std::string_view(again).substr(kLengthBytes), rest, "the file") == header,
                "a header is what was written");
  } catch (const DataError& error) {
    fuzz::check_message(error);
  }
  return 0;
}
