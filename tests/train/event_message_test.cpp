// The bytes of TensorBoard's event files, compared with those that another writer made, which TensorBoard has read.
#include "lockstep/train/tensor_board/event_message.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/train/tensor_board/histogram.h"

namespace lockstep::internal {
namespace {

std::string bytes_of(const std::string& hexadecimal) {
  std::istringstream words(hexadecimal);
  std::string bytes;
  for (std::string word; words >> word;) bytes += static_cast<char>(std::stoi(word, nullptr, 16));
  return bytes;
}

std::string event_with(const auto& fill) {
  std::set<std::string> known;
  SummaryMessage summary(known);
  fill(summary);
  return summary.event(3, 1700000001.0);
}

TEST(EventMessage, BeginsAFile) {
  EXPECT_EQ(event_record(file_version_event(1700000000.0)),
            bytes_of("24 00 00 00 00 00 00 00 42 2b 80 4d 09 00 00 00 40 fc 54 d9 41 1a 0d 62 72 61 69 6e 2e 45 76 65 "
                     "6e 74 3a 32 52 0a 0a 08 6c 6f 63 6b 73 74 65 70 c1 9b 0b cd"));
}

TEST(EventMessage, HasAScalar) {
  EXPECT_EQ(event_record(event_with([](SummaryMessage& summary) { summary.scalar("loss", 0.5); })),
            bytes_of("30 00 00 00 00 00 00 00 95 f5 d0 5f 09 00 00 40 40 fc 54 d9 41 10 03 2a 23 0a 21 0a 04 6c 6f 73 "
                     "73 4a 0d 0a 09 0a 07 73 63 61 6c 61 72 73 20 01 42 0a 08 01 12 00 2a 04 00 00 00 3f b9 3f 41 "
                     "69"));
}

TEST(EventMessage, SaysWhereARunStarts) {
  EXPECT_EQ(event_record(start_event(6, 1700000002.0)),
            bytes_of("0f 00 00 00 00 00 00 00 6d 53 2b 09 09 00 00 80 40 fc 54 d9 41 10 06 3a 02 08 01 b3 71 24 dd"));
}

TEST(EventMessage, HasNumbersOfEachLength) {
  EXPECT_EQ(ProtoMessage().integer(2, 127).text(), bytes_of("10 7f"));
  EXPECT_EQ(ProtoMessage().integer(2, 300).text(), bytes_of("10 ac 02"));
  EXPECT_EQ(ProtoMessage().integer(2, -1).text(), bytes_of("10 ff ff ff ff ff ff ff ff ff 01"));
  EXPECT_EQ(ProtoMessage().bytes(16, "ab").text(), bytes_of("82 01 02 61 62"));
}

TEST(EventMessage, HasMetadataInTheFirstValueOfATagAlone) {
  std::set<std::string> known;
  const auto size = [&](const char* tag) {
    SummaryMessage summary(known);
    summary.scalar(tag, 1);
    return summary.event(0, 0).size();
  };
  const std::size_t first = size("loss");
  EXPECT_EQ(size("loss"), first - 15);  // key, length and 13 bytes
  EXPECT_EQ(size("rate"), first);
}

TEST(EventMessage, HasNoValueWhereNoneWasGiven) {
  std::set<std::string> known;
  SummaryMessage summary(known);
  EXPECT_TRUE(summary.empty());
  summary.text("finding", "**bold**");
  EXPECT_FALSE(summary.empty());
}

TEST(HistogramOf, CountsEachFiniteValueOnce) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0, 30, 1, 1.5, 29.5, -kInfinity, kInfinity, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<HistogramBucket> buckets = histogram_of(values);
  ASSERT_EQ(buckets.size(), 30u);
  EXPECT_EQ(buckets[0].left, 0);
  EXPECT_EQ(buckets[0].count, 1);
  EXPECT_EQ(buckets[1].count, 2);
  EXPECT_EQ(buckets[29].count, 2);
  EXPECT_EQ(buckets[29].right, 30);
  for (std::size_t i = 1; i < buckets.size(); ++i) EXPECT_EQ(buckets[i].left, buckets[i - 1].right);
}

TEST(HistogramOf, EqualValuesAreInAMiddleBucket) {
  for (const float value : {0.0f, -3.0f, 1e30f}) {
    const std::vector<float> values(5, value);
    const std::vector<HistogramBucket> buckets = histogram_of(values);
    ASSERT_EQ(buckets.size(), 30u);
    EXPECT_EQ(buckets[14].count + buckets[15].count, 5) << value;
    EXPECT_LT(buckets[0].left, value);
    EXPECT_GT(buckets[29].right, value);
  }
  EXPECT_TRUE(histogram_of({}).empty());
}

}  // namespace
}  // namespace lockstep::internal
