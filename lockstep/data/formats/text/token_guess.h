// What a file of tokens seems to hold, if not the tokens that it is read as.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::internal::inline data {

/// How tokens are read.
struct TokenLayout {
  int width = 2;           // bytes of one
  bool is_signed = false;  // in two's complement
  int64_t vocabulary = 0;  // tokens are below it; 0: not known
  int64_t bytes = 0;       // of all tokens of the file
};

/// "tokens of 4 bytes", "tokens in big-endian", by `sample`: bytes from the file whose places among the tokens are
/// multiples of 8, as is their number. Nothing where they may be what they are read as, or are too few to tell.
std::optional<std::string> other_tokens(std::string_view sample, const TokenLayout& layout);

/// Where the tokens begin in a file that begins with these bytes, if it is one of NumPy or of llm.c; otherwise 0.
int64_t known_header(std::string_view begin);

}  // namespace lockstep::internal::data
