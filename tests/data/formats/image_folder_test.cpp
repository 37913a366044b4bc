// Folders of classes: what is one, what is none, and which number each has.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/data/files.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Names = std::vector<std::string>;

/// A PNG file of one grey pixel.
const std::string kImage(
    "\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x01\x00\x00\x00\x01"
    "\x08\x00\x00\x00\x00\x3a\x7e\x9b\x55\x00\x00\x00\x0a\x49\x44\x41\x54\x78\x9c\x63\x68\x00\x00\x00"
    "\x82\x00\x81\x77\xcd\x72\xb6\x00\x00\x00\x00\x49\x45\x4e\x44\xae\x42\x60\x82",
    67);

class ImageClasses : public testing::ScratchFolder {
 protected:
  data::ImageFolder with(const Names& classes) const {
    return data::image_folder(folder_.string(), {.height = 1, .width = 1, .classes = classes});
  }
};

TEST_F(ImageClasses, AreNotWhatLiesBesideThem) {
  for (const char* name :
       {"cat/1.png", "cat/deep/2.png", "dog/3.png", "cat/._1.png", "cat/.hidden/4.png", "cat/@eaDir/1.png/thumb.png",
        "dog/Thumbs.db", "dog/.nfs0001.png", "dog/3.png.lock", "dog/3.png~", ".git/5.png", "__MACOSX/cat/._1.png",
        ".ipynb_checkpoints/6.png", "@eaDir/7.png", "lost+found/8.png", "thumbnails/9.png", "train.lock/10.png"}) {
    write(name, kImage);
  }
  std::filesystem::create_directories(path(".DS_Store"));
  const data::ImageFolder folder = with({});
  EXPECT_EQ(folder.classes, (Names{"cat", "dog"}));
  EXPECT_EQ(folder.files, (Names{path("cat/1.png"), path("cat/deep/2.png"), path("dog/3.png")}));
  EXPECT_EQ(folder.passed_over, 0);
}

TEST_F(ImageClasses, ThatAreGivenAreAllAndHaveTheirOrder) {
  for (const char* name : {"ant/1.png", "cat/2.png", ".hidden/3.png"}) write(name, kImage);
  const data::ImageFolder folder = with({"cat", "ant"});
  EXPECT_EQ(folder.classes, (Names{"cat", "ant"}));
  EXPECT_EQ(folder.files, (Names{path("cat/2.png"), path("ant/1.png")}));
  const at::Tensor target = folder.dataset.read_all().target;
  EXPECT_EQ(target[0].item<int64_t>(), 0);
  EXPECT_EQ(target[1].item<int64_t>(), 1);
  EXPECT_EQ(with({"ant", "cat", ".hidden"}).files.back(), path(".hidden/3.png")) << "what is named is meant";
  expect_error<DataError>([&] { with({"ant"}); }, "LS-DATA-FILE", {"'" + folder_.string() + "'", "'cat'"});
  expect_error<DataError>([&] { with({"ant", "bee", "cat"}); }, "LS-DATA-FILE", {"'bee'"});
  expect_error<DataError>([&] { with({"bee"}); }, "LS-DATA-FILE", {"'bee'", "'ant'", "'cat'"});
  expect_error<UsageError>([&] { with({"ant", "cat", "ant"}); }, "LS-OPTION", {"'ant'"});
  expect_error<UsageError>([&] { with({"ant/cat"}); }, "LS-OPTION", {"'ant/cat'"});
  expect_error<UsageError>([&] { with({""}); }, "LS-OPTION");
}

TEST_F(ImageClasses, AreInTheDigest) {
  for (const char* name : {"ant/1.png", "cat/2.png"}) write(name, kImage);
  const auto digest = [&](const Names& classes) { return with(classes).dataset.source()->digest(); };
  EXPECT_EQ(digest({"ant", "cat"}), digest({})) << "the same numbers";
  EXPECT_NE(digest({"cat", "ant"}), digest({}));
}

}  // namespace
}  // namespace lockstep
