// What is written where, and by whom: the plan of a checkpoint, and the pieces of its tensors.
#include "lockstep/checkpoint/write_plan.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <rapidcheck/gtest.h>
#include <algorithm>
#include <numeric>

#include "lockstep/checkpoint/folder/file_names.h"
#include "tests/checkpoint/model_files.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using internal::Image;
using internal::kPieceBytes;
using internal::PlannedPiece;
using internal::share_of;
using internal::WritePlan;
using testing::expect_error;
using testing::ModelFiles;

Image image_of(const std::vector<int64_t>& bytes) {
  Image image;
  image.run.library = "test";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    image.tensors.push_back({i % 3 == 2 ? "slot" : "mirrored", "t" + std::to_string(i), -1,
                             torch::arange(bytes[i], torch::kLong).remainder(251).to(torch::kByte)});
  }
  return image;
}

WritePlan plan_of_pieces(const std::vector<uint64_t>& bytes) {
  WritePlan plan;
  for (const uint64_t one : bytes) plan.pieces.push_back(PlannedPiece{.bytes = one});
  return plan;
}

RC_GTEST_PROP(WritePlan, SharesAreAllPiecesOnceInOrderAndAboutEqual, (const std::vector<uint16_t>& sizes)) {
  std::vector<uint64_t> bytes(sizes.begin(), sizes.end());
  const WritePlan plan = plan_of_pieces(bytes);
  const auto writers = *rc::gen::inRange<int64_t>(1, 9);
  const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  const uint64_t largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  std::size_t next = 0;
  for (int64_t writer = 0; writer < writers; ++writer) {
    const internal::Share share = share_of(plan, writer, writers);
    if (share.size() == 0) continue;
    RC_ASSERT(share.begin == next);
    next = share.end;
    uint64_t mine = 0;
    for (std::size_t p = share.begin; p < share.end; ++p) mine += bytes[p];
    RC_ASSERT(mine <= all / static_cast<uint64_t>(writers) + 1 + largest);
  }
  RC_ASSERT(next == plan.pieces.size());
}

TEST(WritePlan, ATensorIsCutIntoPiecesThatAreItsBytes) {
  const auto whole = static_cast<int64_t>(kPieceBytes);
  const WritePlan plan = internal::plan_of(image_of({whole + 5, 0, 7, 2 * whole}));
  ASSERT_EQ(plan.files.size(), 2u);
  std::vector<uint64_t> bytes(plan.tensors.size());
  std::vector<std::size_t> pieces(plan.tensors.size());
  for (const PlannedPiece& piece : plan.pieces) {
    EXPECT_EQ(piece.begin, bytes[piece.tensor]);
    EXPECT_EQ(piece.number, pieces[piece.tensor]++);
    EXPECT_LE(piece.bytes, kPieceBytes);
    bytes[piece.tensor] += piece.bytes;
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    EXPECT_EQ(bytes[i], plan.tensors[i].value.nbytes());
    EXPECT_EQ(pieces[i], plan.tensors[i].recorded.checksums.size());
  }
  EXPECT_EQ(plan.pieces.size(), 2u + 1 + 1 + 2);
}

TEST(WritePlan, LargeTensorsAreReadAsTheyWereWrittenAndABitInAnyPieceIsFound) {
  const auto whole = static_cast<int64_t>(kPieceBytes);
  const Image image = image_of({2 * whole + 11, 3});
  ModelFiles files;
  internal::save_image(files, "c", image);
  const auto load = [&] { return internal::load_image(files, "c"); };
  const Image loaded = load();
  ASSERT_EQ(loaded.tensors.size(), image.tensors.size());
  for (std::size_t i = 0; i < image.tensors.size(); ++i) {
    EXPECT_TRUE(loaded.tensors[i].value.equal(image.tensors[i].value));
  }
  std::string& bytes = files.bytes("c/weights.safetensors");
  for (const std::size_t from_end : {std::size_t{1}, std::size_t{20}, kPieceBytes + 20, 2 * kPieceBytes + 2}) {
    bytes[bytes.size() - from_end] ^= 4;
    expect_error<DataError>(load, "LS-CHECKPOINT-DAMAGED", {"has other bytes of"});
    bytes[bytes.size() - from_end] ^= 4;
  }
  load();
}

TEST(FileNames, OnlyWhatASaveMakesIsTakenForIt) {
  using internal::WriterFile;
  EXPECT_EQ(internal::file_name("weights", 0), "weights.safetensors");
  EXPECT_EQ(internal::file_name("weights", 2), "weights.2.safetensors");
  for (const char* name : {"weights.0.part", "optimizer.12.part", "manifest.3.part"}) {
    EXPECT_TRUE(internal::is_unfinished(name)) << name;
  }
  for (const char* name : {"weights.part", "weights..part", "weights.1.part.mine", "mine.1.part", "weights.x.part", "",
                           ".part", "record1.2.part"}) {
    EXPECT_FALSE(internal::is_unfinished(name)) << name;
  }
  for (const auto file :
       {WriterFile::kProbe, WriterFile::kMark, WriterFile::kNewMark, WriterFile::kRecord, WriterFile::kNewRecord}) {
    EXPECT_TRUE(internal::is_writer_file(internal::writer_file_name(file, 3, 17)));
  }
  for (const char* name :
       {"record.17.part", "record3.part", "record3.17", "step-0000000001", ".lock", "weights.0.part"}) {
    EXPECT_FALSE(internal::is_writer_file(name)) << name;
  }
}

}  // namespace
}  // namespace lockstep
