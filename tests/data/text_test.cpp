// Text as samples: what a window is, and which files are refused.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/data/sources.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::message_from;

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
  std::string error(const std::string& path, int64_t context) const {
    return message_from<DataError>([&] { data::text(path, context); });
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
  EXPECT_NE(error(holds(letters(49)), 4).find("has 49 bytes, of which the last 4 are to evaluate"), std::string::npos);
  EXPECT_EQ(data::text(holds(letters(50)), 4).train.size(), 11);
}

TEST_F(TextFile, ThatIsMissingOrNoFileOrEmptyIsNamed) {
  const std::string nowhere = (folder_ / "nowhere").string();
  EXPECT_NE(error(nowhere, 4).find("'" + nowhere + "' cannot be opened"), std::string::npos);
  EXPECT_NE(error(folder_.string(), 4).find("is not a plain file"), std::string::npos);
  EXPECT_NE(error("/dev/zero", 4).find("is not a plain file"), std::string::npos);
  EXPECT_NE(error(holds(""), 4).find("has 0 bytes"), std::string::npos);
  EXPECT_NE(error(holds(letters(100)), INT64_MAX).find("no window of 9223372036854775807"), std::string::npos);
  EXPECT_NE(message_from<UsageError>([&] { data::text(holds(letters(100)), 0); }).find("context of 0"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
