#include "lockstep/exchange/row.h"

#include "lockstep/core/loops/checksum.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline exchange {

RowLayout::RowLayout(std::size_t num_variables, std::span<const RowVariable> order, Cut cut) : places_(num_variables) {
  for (const RowVariable& one : order) {
    const int64_t size = size_of(one.numbers);
    const int64_t at_once = cut == Cut::kSumBlocks ? kSumBlock : kBlockBytes / size_in_variable(one.numbers);
    places_[one.variable] = {bytes_, one.elements * size};
    for (int64_t offset = 0; offset < one.elements; offset += at_once) {
      const int64_t count = std::min(at_once, one.elements - offset);
      pieces_.push_back({one.variable, one.numbers, offset, count, bytes_ + offset * size});
    }
    bytes_ += aligned(one.elements * size);
  }
}

bool RowLayout::takes_exactly(std::span<const char> taken) const {
  if (taken.size() != places_.size()) return false;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (takes(i) != (taken[i] != 0)) return false;
  }
  return true;
}

std::size_t RowLayout::piece_at(int64_t place) const {
  const auto found =
      std::partition_point(pieces_.begin(), pieces_.end(), [&](const RowPiece& piece) { return piece.place < place; });
  return static_cast<std::size_t>(found - pieces_.begin());
}

template <class IsOf>
RowSection RowLayout::cut_where(std::size_t first, std::size_t end, int64_t owners, const IsOf& is_of) const {
  RowSection slices(static_cast<std::size_t>(owners));
  std::size_t piece = first;
  for (int64_t w = 0; w < owners; ++w) {
    RowSlice& one = slices[static_cast<std::size_t>(w)];
    one.first_piece = piece;
    one.begin = place_of_piece(piece);
    const std::span<const RowPiece> left = std::span(pieces_).subspan(piece, end - piece);
    const auto last = std::partition_point(left.begin(), left.end(), [&](const RowPiece& p) { return is_of(p, w); });
    piece = w + 1 == owners ? end : piece + static_cast<std::size_t>(last - left.begin());
    one.end_piece = piece;
    one.bytes = place_of_piece(piece) - one.begin;
  }
  return slices;
}

RowSection RowLayout::cut(std::size_t first, std::size_t end, int64_t owners) const {
  const int64_t begin = place_of_piece(first);
  const int64_t share = (place_of_piece(end) - begin) / owners;
  return cut_where(first, end, owners,
                   [&](const RowPiece& piece, int64_t owner) { return piece.place < begin + share * (owner + 1); });
}

RowSection RowLayout::cut(const Slices& slices) const {
  return cut_where(0, pieces_.size(), slices.num_workers(), [&](const RowPiece& piece, int64_t owner) {
    return piece.offset * size_in_variable(piece.numbers) < slices.of(piece.variable, owner).end();
  });
}

std::vector<RowSection> RowLayout::cut_into_sections(std::size_t end, int64_t bytes, int64_t owners) const {
  std::vector<RowSection> sections;
  for (std::size_t first = 0; first < end; first = sections.back().back().end_piece) {
    sections.push_back(cut(first, std::min(end, piece_at(pieces_[first].place + bytes)), owners));
    for (std::size_t w = 0; sections.size() > 1 && w < sections.back().size(); ++w) {
      const RowSlice& last = sections[sections.size() - 2][w];
      sections.back()[w].before = last.before + last.bytes;
    }
  }
  return sections;
}

RowSection RowLayout::behind(std::span<const RowSection> sections, int64_t owners) const {
  const std::size_t first = sections.empty() ? 0 : sections.back().back().end_piece;
  RowSection rest = cut(first, pieces_.size(), owners);
  for (std::size_t w = 0; !sections.empty() && w < rest.size(); ++w)
    rest[w].before = sections.back()[w].before + sections.back()[w].bytes;
  return rest;
}

}  // namespace lockstep::internal::exchange
