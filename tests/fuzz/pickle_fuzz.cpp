// Any bytes as a pickle of torch.save, and as a zip file.
#include "lockstep/checkpoint/formats/pickle.h"

#include <cstring>
#include <span>

#include "lockstep/checkpoint/formats/zip_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

class Bytes final : public lockstep::internal::OpenFile {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> to) const override {
    lockstep::fuzz::check(offset <= size() && to.size() <= size() - offset, "what is read lies in the file");
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
  }

 private:
  std::string_view bytes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    for (const auto& tensor : internal::contents_of_pickle(bytes, "the pickle").tensors) {
      fuzz::check(tensor.name.size() <= size * 33 && tensor.shape.size() <= size,
                  "a tensor is no longer than its pickle");
    }
  } catch (const DataError& error) {
    fuzz::check_message(error);
  }
  try {
    for (const auto& [name, value] : internal::values_of_pickle(bytes, "the pickle")) {
      fuzz::check(name.size() <= internal::kLongestPickledName, "a name is not longer than tensors' names");
    }
  } catch (const DataError& error) {
    fuzz::check_message(error);
  }
  try {
    for (const auto& [name, entry] : internal::entries_of_zip(Bytes(bytes), "the file")) {
      fuzz::check(entry.begin <= size && entry.size <= size - entry.begin, "an entry lies in its file");
    }
  } catch (const DataError& error) {
    fuzz::check_message(error);
  }
  return 0;
}
