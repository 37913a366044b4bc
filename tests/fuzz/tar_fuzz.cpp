// Any bytes as a tar archive, as they are and with right checksums.
#include <cstdio>

#include "lockstep/data/sources/record_files.h"
#include "tests/fuzz/record_promises.h"

namespace {

constexpr std::size_t kBlock = 512;

void check_samples(const std::string& archive, int64_t window) {
  using namespace lockstep;
  const auto make = [window](const std::string& bytes, const data::RecordPlace& at, int64_t max_bytes) {
    return internal::make_tar_reader(internal::Input("input", bytes, 0), at,
                                     {.max_bytes = max_bytes, .window = window});
  };
  for (const fuzz::Read& one : fuzz::read_all(make, archive, 3000)) {
    if (!one.good) continue;
    fuzz::check(one.bytes.size() <= 3000, "the limit is kept");
    const data::TarSample sample = data::parse_tar_sample(one.bytes);
    fuzz::check(!sample.fields.empty(), "a sample has fields");
    const data::TarSample again = data::parse_tar_sample(data::make_tar_sample(sample));
    fuzz::check(again.key == sample.key && again.fields == sample.fields, "a sample is put together again");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* given, std::size_t size) {
  using namespace lockstep;
  std::string bytes(reinterpret_cast<const char*>(given), size);
  fuzz::is_value_or_data_error([&] { data::parse_tar_sample(bytes); });
  check_samples(bytes, 1);
  // In short: each block of an archive is 64 bytes of the input, at the places that matter.
  std::string archive;
  for (std::size_t at = 0; at < size; at += 64) {
    const std::string part = bytes.substr(at, 64);
    std::string block(kBlock, '\0');
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::size_t to = i < 32 ? i : i < 44 ? 124 + i - 32 : i == 44 ? 156 : i < 53 ? 257 + i - 45 : 345 + i - 53;
      block[to] = part[i];
    }
    if (part.find_first_not_of('\0') != std::string::npos) {
      unsigned sum = 8 * ' ';
      for (const char c : block) sum += static_cast<unsigned char>(c);
      std::snprintf(block.data() + 148, 8, "%06o", sum);
    }
    archive += block;
  }
  check_samples(archive, 1);
  check_samples(archive, 2);
  return 0;
}
