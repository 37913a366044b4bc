// The row: where gradients that travel between workers lie one after another, and which part of it each worker owns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/blocks.h"
#include "lockstep/exchange/slices.h"

namespace lockstep::internal::inline exchange {

/// What lies in a row, or beside others, begins at a multiple of so many bytes: no line of a cache belongs to two.
inline constexpr int64_t kRowAlignment = 64;
/// The next multiple of it.
constexpr int64_t aligned(int64_t bytes) { return (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment; }

/// In which numbers a row has a variable.
enum class RowNumbers : uint8_t {
  kFloat,
  kDouble,
  kRounded,  // float32 as bfloat16
};
/// Bytes of a number in the row.
constexpr int64_t size_of(RowNumbers numbers) {
  return numbers == RowNumbers::kDouble ? 8 : numbers == RowNumbers::kFloat ? 4 : 2;
}
/// Bytes of a number in the variable.
constexpr int64_t size_in_variable(RowNumbers numbers) { return numbers == RowNumbers::kDouble ? 8 : 4; }

/// What a layout depends on, of a variable.
struct RowVariable {
  std::size_t variable;  // its index
  RowNumbers numbers;
  int64_t elements;
};

/// A block of one variable: what is packed and added at once.
struct RowPiece {
  std::size_t variable;
  RowNumbers numbers;
  int64_t offset;  // of its first element within the variable
  int64_t count;   // of elements
  int64_t place;   // of its first byte within the row
};

/// A lane's share of pieces, or of a list of them.
template <class T>
std::span<const T> share_of(std::span<const T> all, int lane, int num_lanes) {
  const Block own = block_of(static_cast<int64_t>(all.size()), num_lanes, lane);
  return all.subspan(static_cast<std::size_t>(own.first), static_cast<std::size_t>(own.count));
}

/// Neighbouring pieces that one worker owns, and their bytes with the gaps behind variables.
struct RowSlice {
  std::size_t first_piece = 0;
  std::size_t end_piece = 0;
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t before = 0;  // bytes of the same owner's slices of earlier sections

  int64_t end() const { return begin + bytes; }
  /// How many bytes it has of [first, last).
  int64_t bytes_within(int64_t first, int64_t last) const {
    return std::max<int64_t>(std::min(last, end()) - std::max(first, begin), 0);
  }
};
/// A part of a row that is sent, added and sent back as a whole: a slice for each owner, one behind another.
using RowSection = std::vector<RowSlice>;

/// A pure function of the variables, equal on all workers. Every element lies in exactly one piece. A row is cut where
/// pieces begin, and no bit of a sum depends on where.
class RowLayout {
 public:
  /// By how many elements a variable is cut into pieces.
  enum class Cut : uint8_t {
    kSumBlocks,  // kSumBlock of them: as much as is added at once
    kBlocks,     // as many as a block of an update has: kBlockBytes of the variable
  };

  /// Without any variable.
  RowLayout() = default;
  /// Has those of `order`, in this order, of `num_variables` variables.
  RowLayout(std::size_t num_variables, std::span<const RowVariable> order, Cut cut);

  bool is_empty() const { return pieces_.empty(); }
  /// In the order of the row.
  const std::vector<RowPiece>& pieces() const { return pieces_; }
  std::span<const RowPiece> pieces(const RowSlice& slice) const {
    return std::span(pieces_).subspan(slice.first_piece, slice.end_piece - slice.first_piece);
  }
  int64_t bytes() const { return bytes_; }

  /// Whether the row has variable i; also one without elements.
  bool takes(std::size_t i) const { return i < places_.size() && places_[i].begin >= 0; }
  /// Whether the row has exactly the variables i with `taken[i]`.
  bool takes_exactly(std::span<const char> taken) const;
  /// The first byte of variable i, which the row has, and how many it has there.
  int64_t place(std::size_t i) const { return places_[i].begin; }
  int64_t bytes(std::size_t i) const { return places_[i].bytes; }
  int64_t end(std::size_t i) const { return place(i) + bytes(i); }

  /// The first piece that begins at `place` or behind it.
  std::size_t piece_at(int64_t place) const;
  /// Cuts pieces [first, end) into slices of about equal size.
  RowSection cut(std::size_t first, std::size_t end, int64_t owners) const;
  /// Cuts a row of Cut::kBlocks, which has the variables in their order, so that each worker owns what `slices` gives
  /// it of each variable.
  RowSection cut(const Slices& slices) const;
  /// Cuts pieces [0, end) into sections of about `bytes` bytes.
  std::vector<RowSection> cut_into_sections(std::size_t end, int64_t bytes, int64_t owners) const;
  /// All that lies behind `sections`, which begin where the row does.
  RowSection behind(std::span<const RowSection> sections, int64_t owners) const;

 private:
  struct Place {
    int64_t begin = -1;
    int64_t bytes = 0;
  };
  int64_t place_of_piece(std::size_t piece) const { return piece < pieces_.size() ? pieces_[piece].place : bytes_; }
  /// A slice ends with the last piece that `is_of(piece, owner)` gives to its owner or to an earlier one.
  template <class IsOf>
  RowSection cut_where(std::size_t first, std::size_t end, int64_t owners, const IsOf& is_of) const;

  std::vector<RowPiece> pieces_;
  std::vector<Place> places_;  // by variable
  int64_t bytes_ = 0;
};

}  // namespace lockstep::internal::exchange
