// Where gradients lie in a row, and how rows are cut: claims about the pure layout.
#include "lockstep/exchange/row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal {
namespace {

using Cut = RowLayout::Cut;

/// A row of some of `num_variables` variables, in some order.
struct Sample {
  std::size_t num_variables;
  std::vector<RowVariable> order;
  RowLayout layout(Cut cut) const { return RowLayout(num_variables, order, cut); }
};

Sample random_sample(std::mt19937& random, bool rounded) {
  Sample sample{1 + random() % 12, {}};
  std::vector<std::size_t> order(sample.num_variables);
  std::iota(order.begin(), order.end(), 0);
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    if (random() % 4 == 0) continue;
    constexpr std::array<int64_t, 8> kSizes{0, 1, 15, 16, 2047, 2048, 2049, 30'000};
    const auto numbers = static_cast<RowNumbers>(random() % (rounded ? 3 : 2));
    sample.order.push_back({i, numbers, kSizes[random() % kSizes.size()]});
  }
  return sample;
}

/// Slices are neighbours that make up pieces [first, end) and their bytes, and begin and end where pieces do.
void expect_tiles(const RowLayout& layout, const RowSection& section, std::size_t first, std::size_t end) {
  const auto place_of = [&](std::size_t piece) {
    return piece < layout.pieces().size() ? layout.pieces()[piece].place : layout.bytes();
  };
  std::size_t piece = first;
  for (const RowSlice& slice : section) {
    EXPECT_EQ(slice.first_piece, piece);
    EXPECT_LE(slice.first_piece, slice.end_piece);
    EXPECT_EQ(slice.begin, place_of(slice.first_piece));
    EXPECT_EQ(slice.end(), place_of(slice.end_piece));
    EXPECT_EQ(slice.begin % kRowAlignment, 0) << "a slice begins in the middle of a line";
    piece = slice.end_piece;
  }
  EXPECT_EQ(piece, end);
}

TEST(RowLayout, HasEveryElementInExactlyOnePiece) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const Sample sample = random_sample(random, true);
    for (const Cut cut : {Cut::kSumBlocks, Cut::kBlocks}) {
      const RowLayout layout = sample.layout(cut);
      std::size_t piece = 0;
      for (const RowVariable& one : sample.order) {
        int64_t elements = 0;
        for (; piece < layout.pieces().size() && layout.pieces()[piece].variable == one.variable; ++piece) {
          const RowPiece& here = layout.pieces()[piece];
          EXPECT_EQ(here.offset, elements);
          EXPECT_EQ(here.numbers, one.numbers);
          EXPECT_EQ(here.place, layout.place(one.variable) + elements * size_of(one.numbers));
          EXPECT_GT(here.count, 0);
          EXPECT_LE(here.count, cut == Cut::kSumBlocks ? kSumBlock : kBlockBytes / size_of(one.numbers));
          elements += here.count;
        }
        EXPECT_EQ(elements, one.elements);
      }
      EXPECT_EQ(piece, layout.pieces().size());
    }
  }
}

TEST(RowLayout, BeginsEachVariableAtALineOfItsOwn) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const Sample sample = random_sample(random, true);
    const RowLayout layout = sample.layout(Cut::kSumBlocks);
    int64_t end = 0;
    for (const RowVariable& one : sample.order) {
      EXPECT_EQ(layout.place(one.variable) % kRowAlignment, 0);
      EXPECT_EQ(layout.place(one.variable), end) << "there is more room than the alignment needs";
      EXPECT_EQ(layout.bytes(one.variable), one.elements * size_of(one.numbers));
      end = aligned(layout.end(one.variable));
    }
    EXPECT_EQ(layout.bytes(), end);
  }
}

TEST(RowLayout, KnowsWhichVariablesItHas) {
  const std::vector<RowVariable> order{{2, RowNumbers::kFloat, 3}, {0, RowNumbers::kFloat, 0}};
  const RowLayout layout(3, order, Cut::kBlocks);
  EXPECT_TRUE(layout.takes(0)) << "a variable without elements travels too";
  EXPECT_FALSE(layout.takes(1));
  EXPECT_TRUE(layout.takes_exactly(std::vector<char>{1, 0, 1}));
  EXPECT_FALSE(layout.takes_exactly(std::vector<char>{1, 1, 1}));
  EXPECT_FALSE(layout.takes_exactly(std::vector<char>{1, 0}));
  EXPECT_FALSE(RowLayout().takes(0));
  EXPECT_FALSE(RowLayout().takes_exactly(std::vector<char>{0})) << "nothing has been laid out yet";
}

TEST(RowLayout, IsTiledBySlicesOfAboutAsManyBytes) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const RowLayout layout = random_sample(random, true).layout(Cut::kSumBlocks);
    const auto owners = static_cast<int64_t>(1 + random() % 9);
    const std::size_t first = random() % (layout.pieces().size() + 1);
    const RowSection section = layout.cut(first, layout.pieces().size(), owners);
    ASSERT_EQ(static_cast<int64_t>(section.size()), owners);
    expect_tiles(layout, section, first, layout.pieces().size());
    for (const RowSlice& slice : section) {
      // What is too much is at most one piece with the gap behind it, and the bytes that cannot be divided.
      EXPECT_LE(slice.bytes, (section.back().end() - section.front().begin) / owners + kSumBlock * 8 + owners);
    }
  }
}

TEST(RowLayout, GivesAnEmptySliceWhereThereAreMoreWorkersThanBlocks) {
  const std::vector<RowVariable> order{{0, RowNumbers::kFloat, kSumBlock + 1}};
  const RowLayout layout(1, order, Cut::kSumBlocks);
  const RowSection section = layout.cut(0, layout.pieces().size(), 5);
  expect_tiles(layout, section, 0, 2);
  EXPECT_EQ(std::ranges::count_if(section, [](const RowSlice& one) { return one.bytes > 0; }), 2);
}

TEST(RowLayout, HasAnOwnerOfEachPieceAlsoWhereThereAreMoreWorkersThanBytes) {
  const std::vector<RowVariable> order{{0, RowNumbers::kFloat, 3}};
  const RowLayout layout(1, order, Cut::kSumBlocks);
  expect_tiles(layout, layout.cut(0, 1, 1000), 0, 1);
}

TEST(RowLayout, OfOneElementHasOneLine) {
  const std::vector<RowVariable> order{{0, RowNumbers::kDouble, 1}};
  const RowLayout layout(1, order, Cut::kBlocks);
  ASSERT_EQ(layout.pieces().size(), 1u);
  EXPECT_EQ(layout.pieces().front().count, 1);
  EXPECT_EQ(layout.bytes(), kRowAlignment);
}

TEST(RowLayout, OfEmptyVariablesHasNoPieceAndSlicesWithoutBytes) {
  const std::vector<RowVariable> order{{0, RowNumbers::kFloat, 0}, {1, RowNumbers::kDouble, 0}};
  for (const RowLayout& layout : {RowLayout(2, order, Cut::kBlocks), RowLayout()}) {
    EXPECT_TRUE(layout.is_empty());
    EXPECT_EQ(layout.bytes(), 0);
    for (const RowSlice& slice : layout.cut(0, 0, 3)) EXPECT_EQ(slice.bytes, 0);
    EXPECT_TRUE(layout.cut_into_sections(0, 1 << 20, 3).empty());
  }
}

TEST(RowLayout, GivesWorkersWhatTheirSharesOfAnUpdateAre) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    Sample sample = random_sample(random, false);
    std::ranges::sort(sample.order, {}, &RowVariable::variable);  // as an update has them
    std::vector<VariableExtent> extents(sample.num_variables, {1 + static_cast<int64_t>(random() % 50'000)});
    for (const RowVariable& one : sample.order) extents[one.variable].bytes = one.elements * size_of(one.numbers);
    const auto workers = static_cast<int64_t>(1 + random() % 9);
    const BlockShares shares(extents, static_cast<int>(workers));
    const Slices slices(shares, workers, /*lanes=*/1);
    const RowLayout layout = sample.layout(Cut::kBlocks);
    const RowSection section = layout.cut(slices);
    expect_tiles(layout, section, 0, layout.pieces().size());
    for (int64_t w = 0; w < workers; ++w) {
      const RowSlice& slice = section[static_cast<std::size_t>(w)];
      const LaneRange own{static_cast<int>(w), 1, static_cast<int>(workers)};
      for (const RowPiece& piece : layout.pieces(slice)) {
        const int64_t begin = piece.offset * size_of(piece.numbers);
        EXPECT_TRUE(shares.has(own, piece.variable, begin / kBlockBytes));
      }
      int64_t bytes = 0;
      for (const RowVariable& one : sample.order) {
        const Slice part = slices.of(one.variable, w);
        bytes += aligned(part.bytes);
        EXPECT_EQ(slice.bytes_within(layout.place(one.variable), layout.end(one.variable)), part.bytes);
      }
      EXPECT_EQ(slice.bytes, bytes) << "what travels to a worker is its slices, each at a line of its own";
    }
  }
}

TEST(RowLayout, IsMadeUpOfSectionsAndOfWhatIsBehindThem) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const RowLayout layout = random_sample(random, true).layout(Cut::kSumBlocks);
    const auto owners = static_cast<int64_t>(1 + random() % 5);
    const std::size_t end = random() % (layout.pieces().size() + 1);
    constexpr int64_t kBytes = 20'000;
    const std::vector<RowSection> sections = layout.cut_into_sections(end, kBytes, owners);
    std::size_t piece = 0;
    for (const RowSection& section : sections) {
      expect_tiles(layout, section, piece, section.back().end_piece);
      EXPECT_GT(section.back().end_piece, piece);
      EXPECT_LT(section.back().end() - section.front().begin, kBytes + kSumBlock * 8 + kRowAlignment);
      piece = section.back().end_piece;
    }
    EXPECT_EQ(piece, end);
    for (std::size_t count = 0; count <= sections.size(); ++count) {
      const RowSection rest = layout.behind(std::span(sections).first(count), owners);
      expect_tiles(layout, rest, count == 0 ? 0 : sections[count - 1].back().end_piece, layout.pieces().size());
      for (std::size_t w = 0; w < rest.size(); ++w) {
        int64_t before = 0;
        for (std::size_t s = 0; s < count; ++s) {
          EXPECT_EQ(sections[s][w].before, before)
              << "an owner's slices of two sections would overlap where they arrive";
          before += sections[s][w].bytes;
        }
        EXPECT_EQ(rest[w].before, before);
      }
    }
  }
}

TEST(RowLayout, LanesShareAllPiecesInOrder) {
  std::vector<int> all(7);
  std::iota(all.begin(), all.end(), 0);
  for (const int lanes : {1, 2, 3, 7, 10}) {
    std::vector<int> dealt;
    for (int lane = 0; lane < lanes; ++lane)
      std::ranges::copy(share_of<int>(all, lane, lanes), std::back_inserter(dealt));
    EXPECT_EQ(dealt, all);
  }
}

}  // namespace
}  // namespace lockstep::internal
