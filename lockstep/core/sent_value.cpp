#include "lockstep/core/sent_value.h"

#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

[[noreturn]] void throw_unreadable() {
  throw PeerError("LS-PEER-MESSAGE", "on_chief: the chief sent a value that cannot be read",
                  "start all workers with the same build of the program");
}

}  // namespace

void SentValue::get(void* memory, std::size_t size) {
  if (size > bytes.size() - next_byte_) throw_unreadable();
  if (size > 0) std::memcpy(memory, bytes.data() + next_byte_, size);
  next_byte_ += size;
}

at::Tensor SentValue::get_tensor() {
  if (next_tensor_ == tensors.size()) throw_unreadable();
  return tensors[next_tensor_++];
}

bool SentValue::get_bool() {
  static_assert(sizeof(bool) == 1);
  unsigned char byte = 0;
  get(&byte, 1);
  if (byte > 1) throw_unreadable();
  return byte == 1;
}

std::size_t SentValue::get_count() {
  uint64_t count = 0;
  get(&count, sizeof count);
  if (count > bytes.size() - next_byte_ + tensors.size() - next_tensor_) throw_unreadable();
  return count;
}

}  // namespace lockstep::internal
