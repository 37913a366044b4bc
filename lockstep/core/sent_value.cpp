#include "lockstep/core/sent_value.h"

#include <cstring>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline core {

namespace {

MessageReader reader_of(const std::string& bytes, std::size_t begin) {
  return {std::string_view(bytes).substr(begin), 0, "a value of on_chief()",
          "start all workers with the same build of the program"};
}

}  // namespace

void SentValue::get(void* memory, std::size_t size) {
  const std::string_view from = reader_of(bytes, next_byte_).get_bytes(size);
  if (size > 0) std::memcpy(memory, from.data(), size);
  next_byte_ += size;
}

at::Tensor SentValue::get_tensor() {
  reader_of(bytes, next_byte_).expect(next_tensor_ < tensors.size());
  return tensors[next_tensor_++];
}

bool SentValue::get_bool() {
  static_assert(sizeof(bool) == 1);
  unsigned char byte = 0;
  get(&byte, 1);
  reader_of(bytes, next_byte_).expect(byte <= 1);
  return byte == 1;
}

std::size_t SentValue::get_count() {
  uint64_t count = 0;
  get(&count, sizeof count);
  reader_of(bytes, next_byte_).expect(count <= bytes.size() - next_byte_ + tensors.size() - next_tensor_);
  return count;
}

}  // namespace lockstep::internal::core
