// Writing pieces of a planned checkpoint into its files.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/write_plan.h"

namespace lockstep::internal::inline checkpoint {

/// What one writer writes.
struct PlannedBytes {
  Share share = {};
  std::vector<std::span<const std::byte>> bytes = {};  // of each piece of the share
};

/// Takes the checksums of the pieces of a share.
using GiveChecksums = std::function<void(const Share&, const std::vector<std::string>&)>;

/// Writes pieces into the plan's files, `parts`, and gives their checksums.
std::vector<std::string> write_pieces(Files& files, const WritePlan& plan, const PlannedBytes& mine,
                                      const std::vector<std::unique_ptr<NewFile>>& parts);

}  // namespace lockstep::internal::checkpoint
