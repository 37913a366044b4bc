// Any bytes as a value that the chief sends. The first byte of the input says how many tensors come with them, which
// stand for LibTorch's (stub/ATen/core/TensorBody.h).
#include "lockstep/core/sent_value.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using Value = std::tuple<std::map<std::string, std::vector<int64_t>>, std::optional<std::string>,
                           std::vector<std::pair<uint8_t, at::Tensor>>, std::array<double, 2>,
                           std::vector<std::vector<std::string>>>;
  if (size == 0) return 0;
  internal::SentValue sent;
  sent.bytes.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  sent.tensors.resize(data[0] % 8);
  try {
    const Value value = internal::Sending<Value>::get(sent);
    internal::SentValue again;
    internal::Sending<Value>::put(again, value);
    fuzz::check(again.bytes.size() <= sent.bytes.size() + 1 && again.tensors.size() <= sent.tensors.size(),
                "a value has no more than was sent");
  } catch (const PeerError& error) {
    fuzz::check_message(error);
  }
  return 0;
}
