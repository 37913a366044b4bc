// Any text as a cursor's JSON.
#include "lockstep/data/cursor.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  try {
    const data::Cursor cursor = data::cursor_from_json(std::string(reinterpret_cast<const char*>(data), size));
    const std::string text = data::to_json(cursor);
    const data::Cursor again = data::cursor_from_json(text);
    fuzz::check(data::to_json(again) == text && again == cursor, "a cursor is what was written");
  } catch (const UsageError& error) {
    fuzz::check_message(error);
  }
  return 0;
}
