// Bytes of workers come back as they were written; cut or changed anywhere, they are refused with the worker's index.
#include "lockstep/core/bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::caught_from;
using lockstep::testing::expect_error;

struct Two {
  int64_t a = 0;
  uint64_t b = 0;
  bool operator==(const Two&) const = default;
};

/// With a hole between its members, whose bytes would say what lay there before.
struct WithPadding {
  uint8_t a;
  uint64_t b;
};
static_assert(PlainBytes<Two> && PlainBytes<double> && PlainBytes<std::array<uint8_t, 3>>);
static_assert(!PlainBytes<WithPadding> && !PlainBytes<bool> && !PlainBytes<const char*> && !PlainBytes<std::string>);

/// One of each.
std::string message() {
  std::string bytes;
  ByteWriter to(bytes);
  to.put(uint8_t{7});
  to.put(int64_t{-2});
  to.put(-0.5);
  to.put_text(std::string_view("a\0b", 3));
  to.put_text("");
  to.put_list(std::vector<Two>{{1, 2}, {-3, 4}});
  to.put_all(std::array<uint32_t, 2>{5, 6});
  return bytes;
}

void read(std::string_view bytes) {
  MessageReader reader(bytes, 3, "one of each");
  EXPECT_EQ(reader.get<uint8_t>(), 7);
  EXPECT_EQ(reader.get<int64_t>(), -2);
  EXPECT_EQ(reader.get<double>(), -0.5);
  EXPECT_EQ(reader.get_text(), std::string_view("a\0b", 3));
  EXPECT_EQ(reader.get_text(), "");
  EXPECT_EQ(reader.get_list<Two>(), (std::vector<Two>{{1, 2}, {-3, 4}}));
  EXPECT_EQ(reader.get<uint32_t>(), 5u);
  EXPECT_EQ(reader.get<uint32_t>(), 6u);
  reader.expect_end();
}

TEST(Bytes, ComeBackAsTheyWereWritten) {
  read(message());
  using Four = std::array<char, 4>;
  EXPECT_EQ(MessageReader("abcdefgh", 0, "").get_rest<Four>(),
            (std::vector<Four>{{'a', 'b', 'c', 'd'}, {'e', 'f', 'g', 'h'}}));
}

TEST(Bytes, ThatAreCutOrTooManyAreRefused) {
  const std::string whole = message();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    // A copy in memory of its own, whose end a sanitizer sees.
    const std::vector<char> bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    expect_error<PeerError>([&] { read({bytes.data(), bytes.size()}); }, "LS-PEER-MESSAGE");
  }
  expect_error<PeerError>([&] { read(whole + "x"); }, "LS-PEER-MESSAGE");
}

TEST(Bytes, AreRefusedWithTheWorkerAndWhatWasToBeRead) {
  const auto error = caught_from<PeerError>([] { MessageReader("abc", 3, "one of each").get<uint64_t>(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->failed().worker, 3);
  EXPECT_EQ(error->failed().noticed, PeerError::Noticed::kMessage);
  EXPECT_EQ(std::string(error->what()),
            "worker 3 sent 3 bytes that cannot be read as one of each [LS-PEER-MESSAGE]\n"
            "start all workers with the same version of Lockstep");
  expect_error<PeerError>([] { MessageReader("abc", -1, "a value").get<uint64_t>(); }, "LS-PEER-MESSAGE",
                          {"another worker", "3 bytes"});
}

TEST(Bytes, ThatSayThatMuchFollowsNeedNoMemoryForIt) {
  for (const uint64_t count : {uint64_t{2}, uint64_t{1} << 32, uint64_t{1} << 61, uint64_t{1} << 63,
                               std::numeric_limits<uint64_t>::max() - 7, std::numeric_limits<uint64_t>::max()}) {
    SCOPED_TRACE(count);
    std::string bytes;
    ByteWriter(bytes).put(count);
    ByteWriter(bytes).put(uint64_t{0});
    const auto refused = [&](auto get) {
      MessageReader reader(bytes, 0, "a list");
      expect_error<PeerError>([&] { get(reader); }, "LS-PEER-MESSAGE");
    };
    refused([](MessageReader& reader) { reader.get_list<uint64_t>(); });
    refused([](MessageReader& reader) { reader.get_list<Two>(); });
    refused([](MessageReader& reader) { reader.get_count(sizeof(uint64_t)); });
    if (count > 8) refused([](MessageReader& reader) { reader.get_text(); });
    std::string_view text = "as it was";
    EXPECT_EQ(ByteReader(bytes).get_text(text), count <= 8);
  }
}

TEST(Bytes, OfARestAreWholeValues) {
  EXPECT_TRUE(MessageReader("", 0, "").get_rest<uint64_t>().empty());
  expect_error<PeerError>([] { MessageReader("123456789", 0, "").get_rest<uint64_t>(); }, "LS-PEER-MESSAGE");
}

}  // namespace
}  // namespace lockstep::internal
