// Gzip members for tests, with the headers that different programs write.
#pragma once

#include <zlib.h>

#include <stdexcept>
#include <string>

namespace lockstep::testing {

struct GzipHeader {
  std::string name = {};   // FNAME
  std::string extra = {};  // FEXTRA
};

/// One member that holds `bytes`.
inline std::string gzip_member(const std::string& bytes, const GzipHeader& header = {}) {
  z_stream state = {};
  if (deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2 failed");
  std::string name = header.name;
  std::string extra = header.extra;
  gz_header fields = {};
  if (!name.empty()) fields.name = reinterpret_cast<Bytef*>(name.data());
  if (!extra.empty()) fields.extra = reinterpret_cast<Bytef*>(extra.data());
  fields.extra_len = static_cast<uInt>(extra.size());
  deflateSetHeader(&state, &fields);
  std::string packed(deflateBound(&state, static_cast<uLong>(bytes.size())) + 64 + name.size() + extra.size(), '\0');
  std::string copy = bytes;
  state.next_in = reinterpret_cast<Bytef*>(copy.data());
  state.avail_in = static_cast<uInt>(copy.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  const int code = deflate(&state, Z_FINISH);
  packed.resize(state.total_out);
  deflateEnd(&state);
  if (code != Z_STREAM_END) throw std::runtime_error("deflate failed");
  return packed;
}

}  // namespace lockstep::testing
