// Any bytes as a message of another worker, read in an order that the input decides: its first byte says how many bytes
// of it are the order. What is read lies within the message, and no list is longer than what was sent.
#include "lockstep/core/bytes.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;
using Triple = std::array<unsigned char, 3>;

bool lies_within(std::string_view part, std::string_view whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

/// Reads one thing, and says whether something was left to read.
bool read(internal::MessageReader& reader, uint8_t what, std::string_view message) {
  const std::size_t before = reader.left().size();
  switch (what % 10) {
    case 0: reader.get<uint8_t>(); break;
    case 1: reader.get<uint32_t>(); break;
    case 2: reader.get<double>(); break;
    case 3: reader.get<Triple>(); break;
    case 4: fuzz::check(lies_within(reader.get_text(), message), "a text lies within the message"); break;
    case 5:
      fuzz::check(reader.get_list<uint64_t>().size() <= before / 8, "a list is no longer than the message");
      break;
    case 6: fuzz::check(reader.get_list<Triple>().size() <= before / 3, "a list is no longer than the message"); break;
    case 7: fuzz::check(reader.get_count<uint32_t>(5) <= before / 5, "no more can follow than is there"); break;
    case 8: fuzz::check(reader.get_bytes(what).size() == what, "bytes are as many as asked for"); break;
    default: fuzz::check(reader.get_rest<uint32_t>().size() == before / 4 && reader.at_end(), "a rest is all"); break;
  }
  fuzz::check(reader.left().size() <= before && lies_within(reader.left(), message), "what is left lies within it");
  return !reader.at_end();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t length = data[0] < size ? data[0] : size - 1;
  const std::vector<uint8_t> order(data + 1, data + 1 + length);
  // In memory of its own, whose end the sanitizer sees.
  const std::vector<char> bytes(data + 1 + length, data + size);
  const std::string_view message(bytes.data(), bytes.size());
  internal::MessageReader reader(message, 5, "any message");
  try {
    for (const uint8_t what : order) {
      if (!read(reader, what, message)) break;
    }
    reader.expect_end();
  } catch (const PeerError& error) {
    fuzz::check_message(error);
    fuzz::check(error.failed().worker == 5, "an error names the worker");
  }
  // The same values come back.
  internal::ByteReader texts(message);
  std::string again;
  std::string_view text;
  while (texts.get_text(text)) internal::ByteWriter(again).put_text(text);
  fuzz::check(message.starts_with(again), "what was read is what was written");
  return 0;
}
