// Any bytes as what another worker sends in calls. Of the input the first byte says how large the pieces are in which
// the bytes come, and the next four bytes which calls this worker makes; the rest comes from the other worker.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/network/wire/data_stream.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep::internal;
using lockstep::fuzz::check;

/// Gives the other worker's bytes in pieces, and takes all that is written.
class Script final : public Channel {
 public:
  Script(std::string_view bytes, std::size_t piece) : bytes_(bytes), piece_(piece) {}

  Transfer read(std::span<std::byte> place) override {
    const std::size_t count = std::min({bytes_.size(), place.size(), piece_});
    if (count == 0) return {.state = Transfer::State::kWantsRead};
    std::memcpy(place.data(), bytes_.data(), count);
    bytes_.remove_prefix(count);
    return {.bytes = count};
  }
  Transfer write(std::span<const std::byte> bytes) override { return {.bytes = std::min(bytes.size(), piece_)}; }
  bool flush() override { return true; }
  std::chrono::nanoseconds watch(bool, std::vector<pollfd>&) override { return {}; }

 private:
  std::string_view bytes_;
  const std::size_t piece_;
};

/// What this worker got in its calls, and why there was no other one.
struct Result {
  std::vector<std::string> calls;
  std::string problem;
  std::string window;  // what is in the memory of window 1
  uint64_t puts = 0;
};

/// Whether both mean the same. Where something wrong follows the last message of a call, it is found in that call if it
/// is read together with it, and in the next one if it comes later.
bool is_same(const Result& whole, const Result& pieces) {
  const std::size_t calls = whole.problem.empty() ? pieces.calls.size() : whole.calls.size();
  return pieces.calls.size() >= calls &&
         std::equal(whole.calls.begin(), whole.calls.end(), pieces.calls.begin(),
                    pieces.calls.begin() + static_cast<std::ptrdiff_t>(calls)) &&
         pieces.problem == whole.problem && pieces.window == whole.window && pieces.puts == whole.puts;
}

constexpr std::size_t kCalls = 4;

Result make_calls(const std::array<uint8_t, kCalls>& plan, std::string_view bytes, std::size_t piece) {
  DataStream stream(0, 1, std::make_unique<Script>(bytes, piece));
  WindowTable windows;
  const auto window = std::make_shared<std::string>(5000, '-');
  windows.open(1, {{}, std::as_writable_bytes(std::span(*window))}, window);
  stream.set_windows(&windows);
  const auto advance_until = [&](auto&& holds) {
    // Each advance moves something, or nothing will ever move again.
    while (!holds() && stream.advance() && stream.problem().empty()) {
    }
    return holds() && stream.problem().empty();
  };
  Result result;
  const std::vector<std::byte> sent(100);
  for (std::size_t call = 0; call < kCalls; ++call) {
    std::string got;
    stream.begin(call + 1);
    if (plan[call] == 0) {
      stream.send(MessageHead::Kind::kRecord, sent);
      stream.expect(got);
    } else {
      got.resize(plan[call] == 255 ? 20'000 : plan[call] - std::size_t{1});
      stream.send(MessageHead::Kind::kBytes, sent);
      stream.expect(std::as_writable_bytes(std::span(got)));
    }
    if (!advance_until([&] { return stream.has_received() && stream.has_sent(); })) break;
    check(got.size() <= kLongestRecord, "a record is bounded");
    result.calls.push_back(got);
    stream.send_taken();
    stream.expect_taken();
    if (!advance_until([&] { return stream.is_taken() && stream.has_sent(); })) break;
  }
  while (stream.advance() && stream.problem().empty()) {  // what was put after the last call
  }
  check(stream.broken().empty(), "what comes breaks no channel");
  result.problem = stream.problem();
  result.window = *window;
  result.puts = windows.arrived(1, 1);
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < 1 + kCalls) return 0;
  std::array<uint8_t, kCalls> plan = {};
  std::copy_n(data + 1, kCalls, plan.begin());
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1 + kCalls, size - 1 - kCalls);
  const Result whole = make_calls(plan, bytes, std::max<std::size_t>(bytes.size(), 4096));
  const Result pieces = make_calls(plan, bytes, std::size_t{1} + data[0]);
  check(is_same(whole, pieces), "pieces of a stream mean the same as the whole");
  check(whole.problem.size() < 300, "a problem is a sentence");
  return 0;
}
