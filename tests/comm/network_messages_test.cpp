// What workers say to each other over the network: frames of bytes, texts in them, and whom worker 0 refuses.
#include <gtest/gtest.h>
#include <malloc.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/differences.h"
#include "lockstep/comm/network/join/members.h"
#include "lockstep/comm/network/wire/frame.h"

namespace lockstep::internal {
namespace {

using Pair = std::pair<std::string, std::string>;

constexpr std::array<int, 19> kKinds = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23};

Frame any_frame() {
  return {.kind = static_cast<Frame::Kind>(*rc::gen::elementOf(kKinds)),
          .number = *rc::gen::arbitrary<uint64_t>(),
          .calls = {.taken = *rc::gen::arbitrary<uint64_t>(),
                    .returned = *rc::gen::arbitrary<uint64_t>(),
                    .begun = *rc::gen::arbitrary<uint64_t>()},
          .about = *rc::gen::arbitrary<int64_t>(),
          .text = *rc::gen::string<std::string>()};
}

RC_GTEST_PROP(Frame, ComesBackHoweverTheStreamIsCut, ()) {
  std::vector<Frame> frames(*rc::gen::inRange<std::size_t>(0, 8));
  std::string stream;
  for (Frame& frame : frames) stream += encode(frame = any_frame());
  FrameReader reader;
  std::vector<Frame> read;
  for (std::string_view rest = stream; !rest.empty();) {
    const auto piece = std::min(rest.size(), *rc::gen::inRange<std::size_t>(1, 60));
    reader.add(rest.substr(0, piece));
    rest.remove_prefix(piece);
    while (const std::optional<Frame> frame = reader.next()) read.push_back(*frame);
  }
  RC_ASSERT(read == frames);
  RC_ASSERT(!reader.is_malformed());
}

TEST(Frame, ComesBackByteByByteAndAtItsLongest) {
  const Frame longest{.kind = Frame::Kind::kEnd, .number = 7, .text = std::string(kLongestFrame - 41, 'x')};
  const std::string bytes = encode(longest);
  FrameReader reader;
  reader.add(std::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_FALSE(reader.next());
  reader.add(std::string_view(bytes).substr(bytes.size() - 1));
  EXPECT_EQ(reader.next(), longest);
  for (const char byte : encode(Frame{.text = "slow"})) {
    EXPECT_FALSE(reader.next());
    reader.add({&byte, 1});
  }
  EXPECT_EQ(reader.next(), Frame{.text = "slow"});
  EXPECT_FALSE(reader.is_malformed());
}

/// A frame whose length says something else than is there.
std::string with_length(uint32_t length) {
  std::string bytes = encode(Frame{.text = "text"});
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

void expect_refused(const std::string& bytes) {
  FrameReader reader;
  reader.add(bytes);
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.is_malformed());
  // It stays refused, whatever comes then.
  reader.add(encode(Frame{}));
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.is_malformed());
}

TEST(Frame, IsRefusedWhereItsLengthIsNone) {
  for (const uint32_t length : {0U, 1U, 40U}) expect_refused(with_length(length));
}

TEST(Frame, IsRefusedByItsLengthAloneAndWithoutMemoryForIt) {
  for (const auto length : {static_cast<uint32_t>(kLongestFrame) + 1, 0x7fff'ffffU, 0xffff'ffffU}) {
    const std::size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    FrameReader reader;
    reader.add(with_length(length).substr(0, 4));
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.is_malformed());
    EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, before + 100'000);
  }
}

TEST(Frame, IsRefusedWhereItsKindIsUnknown) {
  for (int kind = 0; kind < 256; ++kind) {
    std::string bytes = encode(Frame{});
    bytes[4] = static_cast<char>(kind);
    if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end()) {
      expect_refused(bytes);
    } else {
      FrameReader reader;
      reader.add(bytes);
      EXPECT_EQ(reader.next(), Frame{.kind = static_cast<Frame::Kind>(kind)});
    }
  }
}

TEST(Frame, ThatIsWholeComesBackAlsoBeforeAMalformedOne) {
  FrameReader reader;
  reader.add(encode(Frame{.number = 1}) + with_length(0));
  EXPECT_EQ(reader.next(), Frame{.number = 1});
  EXPECT_FALSE(reader.is_malformed());
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.is_malformed());
}

/// Of ASCII, and of other letters in UTF-8.
std::string any_text() {
  std::string text;
  for (const int c : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 130))) {
    text += c < 128 ? std::string(1, static_cast<char>(c)) : std::string(c == 128 ? "\xc3\xa4" : "\xf0\x9f\x90\xa7");
  }
  return text;
}

Member any_member() {
  return {.worker = *rc::gen::arbitrary<int64_t>(),
          .process = *rc::gen::arbitrary<int64_t>(),
          .host = any_text(),
          .host_id = any_text(),
          .address = any_text(),
          .port = *rc::gen::arbitrary<uint16_t>(),
          .datagram_port = *rc::gen::arbitrary<uint16_t>()};
}

RC_GTEST_PROP(Joiner, ComesBackFromItsText, ()) {
  const Joiner joiner{any_member(), *rc::gen::arbitrary<int64_t>(), any_text(), {any_text(), "", any_text()}};
  const std::optional<Joiner> back = decode_joiner(encode(joiner));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->member == joiner.member);
  RC_ASSERT(back->num_workers == joiner.num_workers);
  RC_ASSERT(back->must_match == joiner.must_match);
  RC_ASSERT(back->expected == joiner.expected);
}

TEST(Members, HaveTheZoneOfTheHostThatUsesThem) {
  const Joiner joiner{.member = {.address = "fe80::1%eth0"}, .num_workers = 2};
  EXPECT_EQ(encode(joiner).find("eth0"), std::string::npos) << encode(joiner);
  Members members{.all = {joiner.member, {.address = "10.0.0.1"}, {.address = "fd00::1"}}};
  std::optional<Members> there = decode_members(encode(members));
  ASSERT_TRUE(there.has_value());
  EXPECT_EQ(there->all[0].address, "fe80::1");
  set_zone(there->all, "ens3");
  EXPECT_EQ(there->all[0].address, "fe80::1%ens3");
  EXPECT_EQ(there->all[1].address, "10.0.0.1");
  EXPECT_EQ(there->all[2].address, "fd00::1");
}

RC_GTEST_PROP(Members, ComeBackFromTheirText, ()) {
  Members members{.all = {}, .session = any_text()};
  for (int count = *rc::gen::inRange(0, 5); count > 0; --count) members.all.push_back(any_member());
  const std::optional<Members> back = decode_members(encode(members));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->all == members.all);
  RC_ASSERT(back->session == members.session);
}

RC_GTEST_PROP(Attachment, ComesBackFromItsText, ()) {
  using Purpose = Attachment::Purpose;
  const Attachment attachment{*rc::gen::arbitrary<int64_t>(), *rc::gen::arbitrary<int64_t>(),
                              *rc::gen::element(Purpose::kControl, Purpose::kData), any_text()};
  const std::optional<Attachment> back = decode_attachment(encode(attachment));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->worker == attachment.worker);
  RC_ASSERT(back->to == attachment.to);
  RC_ASSERT(back->purpose == attachment.purpose);
  RC_ASSERT(back->session == attachment.session);
}

RC_GTEST_PROP(Texts, OfAnyBytesAreSentAndAreNoErrors, ()) {
  Joiner joiner{any_member(), 2, *rc::gen::string<std::string>(), {}};
  joiner.member.host = *rc::gen::string<std::string>() + "\xff";
  const std::optional<Joiner> back = decode_joiner(encode(joiner));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->member.worker == joiner.member.worker);
  RC_ASSERT(back->member.address == joiner.member.address);
  RC_ASSERT(back->member.host != joiner.member.host);
}

RC_GTEST_PROP(Texts, ThatNobodyMakesAreNothing, ()) {
  const auto text = *rc::gen::string<std::string>();
  RC_ASSERT(!decode_joiner(text).has_value());
  RC_ASSERT(!decode_members(text).has_value());
  RC_ASSERT(!decode_attachment(text).has_value());
}

TEST(Texts, AreNothingWhereAPartIsMissingOrOfAnotherType) {
  const Member member{1, 77, "b", "id", "10.0.0.1", 4711, 4712};
  const auto without = [](std::string text, std::string_view part, std::string_view instead) {
    const std::size_t at = text.find(part);
    EXPECT_NE(at, std::string::npos) << part;
    return text.replace(at, part.size(), instead);
  };
  const std::string joiner = encode(Joiner{member, 2, "facts", {}});
  for (const char* part : {"\"worker\"", "\"process\"", "\"host\"", "\"port\"", "\"datagram_port\"", "\"member\"",
                           "\"num_workers\"", "\"expected\""}) {
    EXPECT_FALSE(decode_joiner(without(joiner, part, "\"other\""))) << part;
  }
  for (const char* value : {"\"4711\"", "null", "{}", "[]"}) {
    EXPECT_FALSE(decode_joiner(without(joiner, "4711", value))) << value;
  }
  EXPECT_FALSE(decode_joiner(without(joiner, "\"facts\"", "3")));
  const std::string members = encode(Members{{member}, "session"});
  EXPECT_FALSE(decode_members(without(members, "[{", "[3,{")));
  EXPECT_FALSE(decode_members(without(members, "\"session\"}", "3}")));
  const std::string attachment = encode(Attachment{1, 0, Attachment::Purpose::kData, "session"});
  for (const char* purpose : {"0", "3", "255", "\"2\""}) {
    const std::string of = "\"purpose\":";
    EXPECT_FALSE(decode_attachment(without(attachment, of + "2", of + purpose))) << purpose;
  }
  for (const char* text : {"", "{", "{}", "[]", "null", "3", "\"text\""}) {
    EXPECT_FALSE(decode_joiner(text) || decode_members(text) || decode_attachment(text)) << text;
  }
}

// No number is taken for another one that has the same lowest bits.
TEST(Texts, AreNothingWhereANumberDoesNotFit) {
  const Member member{1, 77, "b", "id", "10.0.0.1", 4711, 4712};
  std::string joiner = encode(Joiner{member, 2, "", {}});
  joiner.replace(joiner.find("4711"), 4, "70247");
  EXPECT_FALSE(decode_joiner(joiner));
  std::string fraction = encode(Joiner{member, 2, "", {}});
  fraction.replace(fraction.find("4711"), 4, "47.5");
  EXPECT_FALSE(decode_joiner(fraction));
  std::string attachment = encode(Attachment{1, 0, Attachment::Purpose::kData, "session"});
  attachment.replace(attachment.find("\"purpose\":2"), 11, "\"purpose\":258");
  EXPECT_FALSE(decode_attachment(attachment));
  std::string members = encode(Members{{}, "session"});
  members.replace(members.find("[]"), 2, "{}");
  EXPECT_FALSE(decode_members(members));
}

struct Objections : ::testing::Test {
  Joiner joiner{{.worker = 1, .process = 77, .host = "b"}, 2, "Lockstep 1\nLibTorch 2.15", {}};
  const Joiner chief{{.worker = 0, .process = 66, .host = "a"}, 2, "Lockstep 1\nLibTorch 2.15", {}};
};

TEST_F(Objections, AreNoneToOneThatFits) { EXPECT_EQ(objection_to(joiner, chief), ""); }

TEST_F(Objections, NameTheNumbersOfWorkersFirst) {
  joiner = {{.worker = 9, .process = 77, .host = "b"}, 3, "other", {}};
  EXPECT_EQ(
      objection_to(joiner, chief),
      "worker 9 (process 77 on host b) was told that there are 3 workers, and worker 0 (process 66 on host a) was "
      "told 2");
}

TEST_F(Objections, NameAnIndexThatIsNoneBeforeDifferences) {
  for (const int64_t index : {int64_t{-1}, int64_t{2}, std::numeric_limits<int64_t>::max()}) {
    joiner.member.worker = index;
    joiner.must_match = "other";
    EXPECT_EQ(objection_to(joiner, chief),
              "process 77 on host b wants to be worker " + std::to_string(index) + " of 2");
  }
}

TEST_F(Objections, NameTheFirstDifference) {
  joiner.must_match = "Lockstep 1\nLibTorch 2.6";
  EXPECT_EQ(
      objection_to(joiner, chief),
      "worker 1 (process 77 on host b) has 'LibTorch 2.6', and worker 0 (process 66 on host a) has 'LibTorch 2.15'");
}

TEST_F(Objections, NameTheFirstAddressThatWorkersWereToldDifferently) {
  Joiner first = chief;
  joiner.num_workers = first.num_workers = 4;
  first.expected = {"a:1", "b:1", "c:1", "d:1"};
  joiner.expected = {"a:1", "b:1", "d:1", "c:1"};
  EXPECT_EQ(objection_to(joiner, first),
            "worker 1 (process 77 on host b) was told that worker 2 is at d:1, and worker 0 (process 66 on host a) was "
            "told c:1");
  joiner.expected = {"a:1", "b:2", "c:1", "d:1"};
  EXPECT_EQ(objection_to(joiner, first),
            "worker 1 (process 77 on host b) was told that worker 1 is at b:2, and worker 0 (process 66 on host a) was "
            "told b:1");
  joiner.expected = {"a:1", "no address"};
  EXPECT_NE(objection_to(joiner, first), "");
}

TEST_F(Objections, AreNoneToAddressesThatMayBeTheSame) {
  Joiner first = chief;
  joiner.num_workers = first.num_workers = 4;
  first.expected = {"a:1", "b.example:1", "10.0.0.3:1", ""};
  for (const std::vector<std::string>& told :
       std::vector<std::vector<std::string>>{{},
                                             {"a:1"},
                                             {"other:7", "b:1", "c:1", "d:1"},
                                             {"", "", "", "anything:1"},
                                             {"a:1", "b.example:1", "10.0.0.3:1", "", "e:1"}}) {
    joiner.expected = told;
    EXPECT_EQ(objection_to(joiner, first), "");
  }
}

TEST(FirstDifference, IsTheFirstLineThatDiffers) {
  EXPECT_EQ(first_difference("a\nb\nc", "a\nx\ny"), Pair("b", "x"));
  EXPECT_EQ(first_difference("a", "b"), Pair("a", "b"));
  EXPECT_EQ(first_difference("", "b"), Pair("", "b"));
  EXPECT_EQ(first_difference("a\nb", "a"), Pair("b", ""));
  EXPECT_EQ(first_difference("a", "a\n\nb"), Pair("", "b"));
  EXPECT_EQ(first_difference("a\nb", "a\nb"), Pair("b", "b"));
  EXPECT_EQ(first_difference("", ""), Pair("", ""));
}

RC_GTEST_PROP(FirstDifference, IsOneWhereTextsDifferInMoreThanEmptyLinesAtTheirEnd, ()) {
  const auto lines = rc::gen::container<std::string>(rc::gen::element('a', 'b', '\n'));
  const std::string a = *lines + "!";
  const std::string b = *lines + "!";
  const auto [one, other] = first_difference(a, b);
  RC_ASSERT((one == other) == (a == b));
}

}  // namespace
}  // namespace lockstep::internal
