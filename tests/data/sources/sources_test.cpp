#include "lockstep/data/sources/sources.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

/// The share of samples that a linear model, trained well, gets right.
double linear_accuracy(const data::Split& split) {
  OneDeviceStrategy strategy({.seed = 1});
  const auto model = strategy.make_module([] { return torch::nn::Linear(784, 10); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(3e-3));
  const auto data = strategy.distribute(split.train, {.global_batch = 200, .shuffle = true});
  for (int64_t epoch = 0; epoch < 12; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(torch::cross_entropy_loss(model(ctx)->forward(part.input.flatten(1)), part.target)).backward();
        optimizer.step(ctx);
      });
    }
  }
  auto linear = model.export_module();
  const torch::NoGradGuard no_grad;
  const Batch all = split.evaluate.read_all();
  return linear->forward(all.input.flatten(1)).argmax(1).eq(all.target).to(torch::kDouble).mean().item<double>();
}

TEST(Digits, AreTenThousandImagesThatALinearModelDoesNotGetRight) {
  const auto split = data::digits();
  EXPECT_GE(split.train.size(), 10000);
  EXPECT_GE(split.evaluate.size(), 1000);
  const Batch all = split.train.read_all();
  EXPECT_EQ(all.input.sizes(), (std::vector<int64_t>{split.train.size(), 1, 28, 28}));
  EXPECT_NEAR(all.input.mean().item<double>(), 0, 0.2);
  EXPECT_NEAR(all.input.std().item<double>(), 1, 0.2);
  for (int64_t digit = 0; digit < 10; ++digit) EXPECT_GT(all.target.eq(digit).sum().item<int64_t>(), 800);
  const double accuracy = linear_accuracy(split);
  EXPECT_LE(accuracy, 0.95);
  EXPECT_GE(accuracy, 0.5) << "and yet they are digits";
}

TEST(Digits, AreTheSameBitsEverywhereAndForEver) {
  const Batch few = data::digits(20, 5, 1).train.read_all();
  EXPECT_EQ(sha256_of({{"input", few.input}, {"target", few.target}}),
            "a8accaa63b6a807fbfbf0efbdc63133e161b209a98f8f35afb0ca6982d6e1ecb");
}

TEST(Digits, TrainAndEvaluateOnDifferentImages) {
  const auto split = data::digits(50, 50, 1);
  EXPECT_FALSE(torch::equal(split.train.read_all().input, split.evaluate.read_all().input));
}

/// A scratch folder that goes with the test.
class IdxFiles : public ::testing::Test {
 protected:
  IdxFiles() : folder_(fs::temp_directory_path() / ("lockstep-idx-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~IdxFiles() override { fs::remove_all(folder_); }

  static std::string word(uint32_t value) {
    return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
            static_cast<char>(value)};
  }
  static std::string images(uint32_t count, uint32_t side = 28) {
    std::string bytes = word(0x803) + word(count) + word(side) + word(side);
    for (uint32_t i = 0; i < count * side * side; ++i) bytes += static_cast<char>(i * 7);
    return bytes;
  }
  static std::string labels(uint32_t count) {
    std::string bytes = word(0x801) + word(count);
    for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
    return bytes;
  }
  void plain(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void packed(const std::string& name, const std::string& bytes) {
    gzFile file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  /// Reading the folder fails with these values.
  void expect_data_error(std::initializer_list<std::string_view> values,
                         const testing::Where& where = testing::Where::current()) const {
    expect_error<DataError>([&] { data::idx(folder_.string()); }, "LS-DATA-FILE", values, where);
  }
  /// The file's path in quotes, as errors name it.
  std::string quoted(const std::string& name) const { return "'" + (folder_ / name).string() + "'"; }
  const fs::path folder_;
};

TEST_F(IdxFiles, AreReadPlainAndCompressed) {
  plain("train-images-idx3-ubyte", images(3));
  packed("train-labels-idx1-ubyte.gz", labels(3));
  packed("t10k-images.idx3-ubyte.gz", images(2));
  plain("t10k-labels.idx1-ubyte", labels(2));
  const auto split = data::idx(folder_.string());
  EXPECT_EQ(split.train.size(), 3);
  EXPECT_EQ(split.evaluate.size(), 2);
  const Batch all = split.train.read_all();
  EXPECT_EQ(all.target[2].item<int64_t>(), 2);
  EXPECT_FLOAT_EQ(all.input[0][0][0][1].item<float>(), (7.0f / 255 - 0.1307f) / 0.3081f);
}

TEST_F(IdxFiles, OfTheTestSetAloneAreCutAtFourFifths) {
  packed("t10k-images-idx3-ubyte.gz", images(10));
  packed("t10k-labels-idx1-ubyte.gz", labels(10));
  const auto split = data::idx(folder_.string());
  EXPECT_EQ(split.train.size(), 8);
  EXPECT_EQ(split.evaluate.size(), 2);
  EXPECT_EQ(split.evaluate.read_all().target[0].item<int64_t>(), 8);
}

TEST_F(IdxFiles, ThatAreNotThereAreNamed) {
  const std::string folder = "'" + folder_.string() + "'";
  expect_data_error({folder, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"});
  const std::string nowhere = quoted("nowhere");
  expect_error<DataError>([&] { data::idx((folder_ / "nowhere").string()); }, "LS-DATA-FILE", {nowhere});
  plain("t10k-images-idx3-ubyte", images(2));
  expect_data_error({folder, "t10k's images", "labels"});
}

TEST_F(IdxFiles, ThatAreDamagedAreNamedWithThePlace) {
  plain("t10k-labels-idx1-ubyte", labels(2));
  const std::string path = quoted("t10k-images-idx3-ubyte");
  const auto expect_damaged = [&](const std::string& bytes, std::string_view value, std::string_view other = {},
                                  const testing::Where& where = testing::Where::current()) {
    plain("t10k-images-idx3-ubyte", bytes);
    expect_data_error({path, value, other.empty() ? value : other}, where);
  };
  expect_damaged("", "byte 0");
  expect_damaged("abc", "byte 3");
  expect_damaged("not an IDX file at all", "images", "0x00000803");
  expect_damaged(labels(2), "0x00000801", "0x00000803");
  expect_damaged(images(2).substr(0, 500), "484 bytes", "1568");
  expect_damaged(images(2) + "x", "1568 bytes");
  expect_damaged(images(3), "3 images", "2 labels");
  expect_damaged(images(2, 14), "2 images", "14 x 14");
}

TEST_F(IdxFiles, ThatPromiseMoreThanTheyHaveTakeNoMemory) {
  plain("t10k-labels-idx1-ubyte", labels(2));
  for (const uint32_t huge : {0xffffffffu, 0x7fffffffu}) {
    plain("t10k-images-idx3-ubyte", word(0x803) + word(huge) + word(huge) + word(huge) + std::string(100, 'x'));
    const std::string path = quoted("t10k-images-idx3-ubyte");
    expect_data_error({path, "100 bytes"});
  }
}

TEST_F(IdxFiles, WithABrokenCompressionAreNamed) {
  plain("t10k-labels-idx1-ubyte", labels(200));
  packed("t10k-images-idx3-ubyte.gz", images(200));
  std::string bytes;
  {
    std::ifstream in(folder_ / "t10k-images-idx3-ubyte.gz", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string path = quoted("t10k-images-idx3-ubyte.gz");
  plain("t10k-images-idx3-ubyte.gz", bytes.substr(0, bytes.size() / 2));
  expect_data_error({path});
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  plain("t10k-images-idx3-ubyte.gz", bytes);
  expect_data_error({path});
}

TEST_F(IdxFiles, WithALabelBeyondNineAreNamed) {
  plain("t10k-images-idx3-ubyte", images(2));
  plain("t10k-labels-idx1-ubyte", word(0x801) + word(2) + std::string("\x03\x0a", 2));
  const std::string path = quoted("t10k-labels-idx1-ubyte");
  expect_data_error({path, "label 10", "sample 1"});
}

TEST(Mnist, OfTheSharedDataFolderIsTenThousandDigits) {
  const char* shared = std::getenv("LOCKSTEP_SHARED_DATA");
  const fs::path folder = fs::path(shared ? shared : "") / "mnist-10k";
  if (!shared || !fs::exists(folder)) GTEST_SKIP() << "LOCKSTEP_SHARED_DATA names no folder with mnist-10k in it";
  const auto split = data::idx(folder.string());
  EXPECT_EQ(split.train.size(), 8000);
  EXPECT_EQ(split.evaluate.size(), 2000);
  EXPECT_NEAR(split.train.read_all().input.mean().item<double>(), 0, 0.05);
}

}  // namespace
}  // namespace lockstep
