#include "lockstep/checkpoint/folder/write_pieces.h"

#include <algorithm>
#include <cstdint>

#include "lockstep/checkpoint/content_checksum.h"
#include "lockstep/data/read_pool.h"

namespace lockstep::internal::inline checkpoint {

namespace {

/// How many bytes of a table are in memory at once, for each thread that writes.
constexpr std::size_t kMadeBytes = std::size_t{256} << 10;

/// Writes a piece whose bytes are made; gives its checksum.
std::string write_made(const PlannedTensor& tensor, const PlannedPiece& piece, NewFile& file) {
  std::vector<std::byte> buffer(std::min<std::size_t>(kMadeBytes, piece.bytes));
  ContentChecksum checksum;
  for (uint64_t done = 0; done < piece.bytes;) {
    const std::span<std::byte> bytes(buffer.data(), std::min<std::size_t>(buffer.size(), piece.bytes - done));
    tensor.read(piece.begin + done, bytes);
    checksum.add(bytes);
    file.write(tensor.offset + piece.begin + done, bytes);
    done += bytes.size();
  }
  return checksum.digits();
}

}  // namespace

std::vector<std::string> write_pieces(Files& files, const WritePlan& plan, const PlannedBytes& mine,
                                      const std::vector<std::unique_ptr<NewFile>>& parts) {
  std::vector<std::string> checksums(mine.share.size());
  ReadPool pool(files.writing_threads());
  pool.run(static_cast<int64_t>(mine.share.size()), [&](int64_t i) {
    const auto k = static_cast<std::size_t>(i);
    const PlannedPiece& piece = plan.pieces[mine.share.begin + k];
    const PlannedTensor& tensor = plan.tensors[piece.tensor];
    if (tensor.read) {
      checksums[k] = write_made(tensor, piece, *parts[tensor.recorded.file]);
      return;
    }
    checksums[k] = content_checksum(mine.bytes[k]);
    if (piece.bytes > 0) parts[tensor.recorded.file]->write(tensor.offset + piece.begin, mine.bytes[k]);
  });
  return checksums;
}

}  // namespace lockstep::internal::checkpoint
