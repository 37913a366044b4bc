// What kind of character a code point is, and code points of UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::internal::inline data {

enum class CharacterClass : uint8_t { kSpace, kLetter, kNumber, kOther };

/// A code point's class: White_Space, the general categories L and N, and all others.
CharacterClass class_of(uint32_t code);

/// A code point and how many bytes it has.
struct Character {
  static constexpr uint32_t kNone = 0xffffffff;  // of a byte that is no part of UTF-8
  uint32_t code = kNone;
  std::size_t bytes = 1;
};

/// The character at a byte of a text. `at` is below the text's size.
Character character_at(std::string_view text, std::size_t at);

}  // namespace lockstep::internal::data
