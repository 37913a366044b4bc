// Any bytes as a stream of frames, whole and in pieces. The first byte of the input says how long the pieces are.
#include <algorithm>
#include <string_view>
#include <vector>

#include "lockstep/comm/network/wire/frame.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep::internal;
using lockstep::fuzz::check;

struct Reading {
  std::vector<Frame> frames;
  bool is_malformed = false;
};

Reading read(std::string_view stream, std::size_t piece) {
  Reading reading;
  FrameReader reader;
  while (!stream.empty()) {
    reader.add(stream.substr(0, piece));
    stream.remove_prefix(std::min(piece, stream.size()));
    while (const auto frame = reader.next()) reading.frames.push_back(*frame);
  }
  reading.is_malformed = reader.is_malformed();
  return reading;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Reading whole = read(stream, stream.size());
  const Reading pieces = read(stream, std::size_t{1} + data[0] % 40);
  check(pieces.frames == whole.frames, "pieces of a stream have the frames of the whole");
  check(pieces.is_malformed == whole.is_malformed, "pieces of a stream are refused where the whole is");
  std::string again;
  for (const Frame& frame : whole.frames) again += encode(frame);
  check(stream.starts_with(again), "a frame is what encode() makes");
  check(whole.is_malformed || stream.size() - again.size() < kLongestFrame + 4, "what waits for the rest is bounded");
  return 0;
}
