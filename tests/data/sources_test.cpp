#include "lockstep/data/sources.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::message_from;

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
  std::string error() {
    return message_from<DataError>([&] { data::idx(folder_.string()); });
  }
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
  EXPECT_NE(error().find("holds no pair"), std::string::npos);
  EXPECT_NE(message_from<DataError>([&] { data::idx((folder_ / "nowhere").string()); }).find("is not a folder"),
            std::string::npos);
  plain("t10k-images-idx3-ubyte", images(2));
  EXPECT_NE(error().find("images without its labels"), std::string::npos);
}

TEST_F(IdxFiles, ThatAreDamagedAreNamedWithThePlace) {
  plain("t10k-labels-idx1-ubyte", labels(2));
  const auto with_images = [&](const std::string& bytes) {
    plain("t10k-images-idx3-ubyte", bytes);
    const auto text = error();
    EXPECT_NE(text.find("t10k-images-idx3-ubyte"), std::string::npos) << text;
    return text;
  };
  EXPECT_NE(with_images("").find("ends at byte 0"), std::string::npos);
  EXPECT_NE(with_images("abc").find("ends at byte 3"), std::string::npos);
  EXPECT_NE(with_images("not an IDX file at all").find("not an IDX file"), std::string::npos);
  EXPECT_NE(with_images(labels(2)).find("instead of 0x00000803"), std::string::npos);
  EXPECT_NE(with_images(images(2).substr(0, 500)).find("484 bytes of data where its header promises 1568"),
            std::string::npos);
  EXPECT_NE(with_images(images(2) + "x").find("more than the 1568"), std::string::npos);
  EXPECT_NE(with_images(images(3)).find("3 images"), std::string::npos);
  EXPECT_NE(with_images(images(2, 14)).find("14 x 14"), std::string::npos);
}

TEST_F(IdxFiles, ThatPromiseMoreThanTheyHaveTakeNoMemory) {
  plain("t10k-labels-idx1-ubyte", labels(2));
  for (const uint32_t huge : {0xffffffffu, 0x7fffffffu}) {
    plain("t10k-images-idx3-ubyte", word(0x803) + word(huge) + word(huge) + word(huge) + std::string(100, 'x'));
    EXPECT_NE(error().find("100 bytes of data"), std::string::npos);
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
  plain("t10k-images-idx3-ubyte.gz", bytes.substr(0, bytes.size() / 2));
  error();
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  plain("t10k-images-idx3-ubyte.gz", bytes);
  error();
}

TEST_F(IdxFiles, WithALabelBeyondNineAreNamed) {
  plain("t10k-images-idx3-ubyte", images(2));
  plain("t10k-labels-idx1-ubyte", word(0x801) + word(2) + std::string("\x03\x0a", 2));
  EXPECT_NE(error().find("label 10 at sample 1"), std::string::npos);
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
