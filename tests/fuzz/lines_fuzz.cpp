// Any bytes as lines of text.
#include "tests/fuzz/record_promises.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto all = fuzz::read_all(fuzz::at_place(&internal::make_line_reader), text, 20);
  for (const fuzz::Read& line : all) {
    const std::size_t begin = static_cast<std::size_t>(line.place.offset);
    fuzz::check(begin == 0 || text[begin - 1] == '\n', "a line begins behind another one");
    const std::string whole = text.substr(begin, text.find('\n', begin) - begin);
    fuzz::check(line.good == (whole.size() <= 20), "the limit is kept");
    const bool is_dos = whole.ends_with('\r');
    fuzz::check(!line.good || line.bytes == whole.substr(0, whole.size() - (is_dos ? 1 : 0)), "a line comes as it is");
  }
  return 0;
}
