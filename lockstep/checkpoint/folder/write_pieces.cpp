#include "lockstep/checkpoint/folder/write_pieces.h"

#include <cstdint>

#include "lockstep/checkpoint/content_checksum.h"
#include "lockstep/data/read_pool.h"

namespace lockstep::internal::inline checkpoint {

std::vector<std::string> write_pieces(Files& files, const WritePlan& plan, const PlannedBytes& mine,
                                      const std::vector<std::unique_ptr<NewFile>>& parts) {
  std::vector<std::string> checksums(mine.share.size());
  ReadPool pool(files.writing_threads());
  pool.run(static_cast<int64_t>(mine.share.size()), [&](int64_t i) {
    const auto k = static_cast<std::size_t>(i);
    const PlannedPiece& piece = plan.pieces[mine.share.begin + k];
    const PlannedTensor& tensor = plan.tensors[piece.tensor];
    checksums[k] = content_checksum(mine.bytes[k]);
    if (piece.bytes > 0) parts[tensor.recorded.file]->write(tensor.offset + piece.begin, mine.bytes[k]);
  });
  return checksums;
}

}  // namespace lockstep::internal::checkpoint
