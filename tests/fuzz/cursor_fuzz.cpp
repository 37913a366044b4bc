// Any text as a cursor's JSON.
#include "lockstep/data/cursor.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  using namespace lockstep;
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  try {
    const data::Cursor cursor = data::cursor_from_json(text);
    const auto expect_in_text = [&](auto number) {
      fuzz::check(text.find(std::to_string(number)) != std::string::npos, "a number is one of the text");
    };
    for (const int64_t number : {cursor.epoch, cursor.position, cursor.size}) expect_in_text(number);
    expect_in_text(cursor.seed);
    for (const int64_t number : cursor.stream) expect_in_text(number);
    const std::string written = data::to_json(cursor);
    const data::Cursor again = data::cursor_from_json(written);
    fuzz::check(data::to_json(again) == written && again == cursor, "a cursor is what was written");
  } catch (const UsageError& error) {
    fuzz::check_message(error);
  }
  return 0;
}
