// Text as samples: what a window is, and which files are refused.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/data/sources/sources.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

class TextFile : public ::testing::Test {
 protected:
  TextFile() : folder_(fs::temp_directory_path() / ("lockstep-text-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~TextFile() override { fs::remove_all(folder_); }
  std::string holds(const std::string& bytes) const {
    std::ofstream(folder_ / "text", std::ios::binary) << bytes;
    return (folder_ / "text").string();
  }
  /// Reading it fails with the path and these values.
  static void expect_refused(const std::string& path, int64_t context,
                             std::initializer_list<std::string_view> values = {},
                             const testing::Where& where = testing::Where::current()) {
    const std::string quoted = "'" + path + "'";
    const auto read = [&] { data::text(path, context); };
    expect_error<DataError>(read, "LS-DATA-FILE", {quoted}, where);
    expect_error<DataError>(read, "LS-DATA-FILE", values, where);
  }
  const fs::path folder_;
};

std::string letters(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += static_cast<char>('a' + i % 7);
  return bytes;
}

std::vector<int64_t> row(const at::Tensor& tensor, int64_t index) {
  const at::Tensor one = tensor[index].contiguous();
  return {one.data_ptr<int64_t>(), one.data_ptr<int64_t>() + one.numel()};
}

TEST_F(TextFile, IsCutIntoWindowsWhoseTargetsAreOneFurther) {
  const auto text = data::text(holds(letters(100)), 4);
  EXPECT_EQ(text.vocabulary, "abcdefg");
  EXPECT_EQ(text.train.size(), 22) << "of 90 bytes, the last of a window's targets not being its own";
  EXPECT_EQ(text.evaluate.size(), 2);
  const Batch train = text.train.read_all();
  EXPECT_EQ(train.input.scalar_type(), at::kLong);
  EXPECT_EQ(train.target.sizes(), (std::vector<int64_t>{22, 4}));
  EXPECT_EQ(row(train.input, 0), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(row(train.target, 0), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(row(train.input, 21), (std::vector<int64_t>{0, 1, 2, 3})) << "bytes 84 to 87";
  EXPECT_EQ(row(text.evaluate.read_all().input, 0), (std::vector<int64_t>{6, 0, 1, 2})) << "bytes 90 to 93";
  const int64_t ids[] = {5, 2};
  EXPECT_EQ(row(text.train.read(ids).input, 0), (std::vector<int64_t>{6, 0, 1, 2})) << "bytes 20 to 23";
  EXPECT_EQ(text.train.read({}).input.sizes(), (std::vector<int64_t>{0, 4}));
}

TEST_F(TextFile, MayHoldEveryByte) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(255 - i);
  const auto text = data::text(holds(bytes + bytes), 8);
  ASSERT_EQ(text.vocabulary.size(), 256u);
  EXPECT_EQ(text.vocabulary[0], '\0');
  EXPECT_EQ(static_cast<unsigned char>(text.vocabulary[255]), 255);
  EXPECT_EQ(row(text.train.read_all().input, 0), (std::vector<int64_t>{255, 254, 253, 252, 251, 250, 249, 248}));
}

TEST_F(TextFile, ThatFillsOneWindowInEachPartIsLongEnough) {
  EXPECT_EQ(data::text(holds(letters(50)), 4).evaluate.size(), 1);
  expect_refused(holds(letters(49)), 4, {"49 bytes", "last 4", "window of 4"});
  EXPECT_EQ(data::text(holds(letters(50)), 4).train.size(), 11);
}

TEST_F(TextFile, ThatIsMissingOrNoFileOrEmptyIsNamed) {
  const std::string nowhere = (folder_ / "nowhere").string();
  expect_refused(nowhere, 4);
  expect_refused(folder_.string(), 4);
  expect_refused("/dev/zero", 4);
  expect_refused(holds(""), 4, {"0 bytes"});
  expect_refused(holds(letters(100)), INT64_MAX, {"100 bytes", "window of 9223372036854775807"});
  expect_error<UsageError>([&] { data::text(holds(letters(100)), 0); }, "LS-OPTION", {"text", "context of 0"});
}

}  // namespace
}  // namespace lockstep
