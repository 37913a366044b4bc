#include "lockstep/checkpoint/formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"

namespace lockstep::internal::inline checkpoint {

using nlohmann::json;

namespace {

constexpr uint64_t kLongestHeader = 100'000'000;  // as the format's own library has it
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, uint64_t>, 18> kDtypes{{{"BOOL", 1},
                                                                         {"U8", 1},
                                                                         {"I8", 1},
                                                                         {"F8_E4M3", 1},
                                                                         {"F8_E5M2", 1},
                                                                         {"F8_E8M0", 1},
                                                                         {"F8_E4M3FNUZ", 1},
                                                                         {"F8_E5M2FNUZ", 1},
                                                                         {"U16", 2},
                                                                         {"I16", 2},
                                                                         {"F16", 2},
                                                                         {"BF16", 2},
                                                                         {"U32", 4},
                                                                         {"I32", 4},
                                                                         {"F32", 4},
                                                                         {"U64", 8},
                                                                         {"I64", 8},
                                                                         {"F64", 8}}};

TensorPlace place_of(const std::string& name, const json& entry, const std::string& what) {
  const std::string whose = fmt::format("{}: '{}'", what, shown(name));
  if (!entry.is_object() || entry.size() != 3) throw_damaged(whose, "is not a tensor's dtype, shape and data_offsets");
  TensorPlace place{.name = name, .dtype = text_in(entry, "dtype", whose), .shape = naturals_in(entry, "shape", whose)};
  const uint64_t element = element_size(place.dtype);
  if (element == 0) throw_damaged(whose, fmt::format("has the dtype '{}', which is unknown", shown(place.dtype)));
  const std::vector<int64_t> offsets = naturals_in(entry, "data_offsets", whose);
  if (offsets.size() != 2) throw_damaged(whose, "has no pair of data_offsets");
  place.begin = static_cast<uint64_t>(offsets[0]);
  place.end = static_cast<uint64_t>(offsets[1]);
  uint64_t bytes = 0;
  if (!bytes_of(place.shape, element, bytes) || place.end < place.begin || place.end - place.begin != bytes) {
    throw_damaged(whose,
                  fmt::format("does not have as many bytes as its shape [{}] needs", fmt::join(place.shape, ", ")));
  }
  return place;
}

/// Where the JSON object that begins a text ends: behind the brace that closes it. The whole text where none does.
std::size_t end_of_object(std::string_view text) {
  int depth = 0;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      is_in_string = c != '"';
    } else if (c == '"') {
      is_in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return text.size();
}

/// The format pads its header with spaces, and has nothing else behind the object: other bytes there are of nobody, and
/// readers differ in what they do with them.
void require_padding(std::string_view text, std::size_t end, const std::string& what) {
  const std::size_t other = text.find_first_not_of(' ', end);
  if (other == std::string_view::npos) return;
  throw_damaged(what, fmt::format("has the byte {:#04x} at byte {}, behind the JSON object of its header, where only "
                                  "spaces may be",
                                  static_cast<unsigned char>(text[other]), kLengthBytes + other));
}

}  // namespace

uint64_t element_size(std::string_view dtype) {
  for (const auto& [name, size] : kDtypes) {
    if (name == dtype) return size;
  }
  return 0;
}

bool bytes_of(const std::vector<int64_t>& shape, uint64_t element_size, uint64_t& bytes) {
  bytes = element_size;
  bool fits = true;
  for (const int64_t size : shape) {
    if (size < 0) return false;
    fits = !__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) && fits;
  }
  // An empty tensor has no bytes, but LibTorch multiplies its sizes too.
  return fits && bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

void layout(TensorFileHeader& header) {
  uint64_t next = 0;
  for (TensorPlace& one : header.tensors) {
    uint64_t bytes = 0;
    bytes_of(one.shape, element_size(one.dtype), bytes);
    one.begin = next;
    one.end = next + bytes;
    next = one.end;
  }
}

std::string encode_header(const TensorFileHeader& header) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) object[kMetadata] = header.metadata;
  for (const TensorPlace& one : header.tensors) {
    object[one.name] = {{"dtype", one.dtype}, {"shape", one.shape}, {"data_offsets", {one.begin, one.end}}};
  }
  std::string text = object.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the elements are aligned where the file is mapped
  std::string bytes;
  for (uint64_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return bytes + text;
}

uint64_t header_length(std::span<const unsigned char, kLengthBytes> first, uint64_t file_size,
                       const std::string& what) {
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(first[i]) << (8 * i);
  if (file_size < kLengthBytes || length > file_size - kLengthBytes || length > kLongestHeader) {
    throw_damaged(what, fmt::format("has {} bytes, and says that its header has {}", file_size, length));
  }
  return length;
}

TensorFileHeader decode_header(std::string_view text, uint64_t data_bytes, const std::string& what) {
  if (text.empty() || text.front() != '{') throw_damaged(what, "has a header that is not a JSON object");
  const std::size_t end = end_of_object(text);
  require_padding(text, end, what);
  const json object = parse_object(text.substr(0, end), what + ": its header", 4);
  TensorFileHeader header;
  for (const auto& [name, entry] : object.items()) {
    if (name == kMetadata) {
      if (!entry.is_object()) throw_damaged(what, "has metadata that are no object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) throw_damaged(what, "has metadata that are no text");
        header.metadata[key] = value.get<std::string>();
      }
    } else {
      header.tensors.push_back(place_of(name, entry, what));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorPlace& a, const TensorPlace& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t next = 0;
  for (const TensorPlace& one : header.tensors) {
    if (one.begin != next) {
      throw_damaged(
          what, fmt::format("has '{}' at byte {} of its data, where {} is expected", shown(one.name), one.begin, next));
    }
    next = one.end;
  }
  if (next != data_bytes) {
    throw_damaged(what, fmt::format("has {} bytes of data, and its header describes {}", data_bytes, next));
  }
  return header;
}

}  // namespace lockstep::internal::checkpoint
