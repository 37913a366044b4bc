// What the files of a checkpoint will be, byte by byte, before anything is written. Workers with the same state make
// the same plan, so that each can write a part of it. These are pure functions.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/folder/manifest.h"
#include "lockstep/checkpoint/image.h"

namespace lockstep::internal::inline checkpoint {

struct PlannedFile {
  std::string stem = {};  // "weights", the first part of its name
  std::string head = {};  // everything before the tensors' elements
  uint64_t bytes = 0;
};

struct PlannedTensor {
  RecordedTensor recorded = {};  // with as many checksums as it has pieces, which are empty
  at::Tensor value = {};         // dense, as it is stored; of a table's, one element that stands for all
  /// Of a table's: writes its bytes from `begin` on. Any thread.
  std::function<void(uint64_t begin, std::span<std::byte> to)> read = {};
  bool is_borrowed = false;  // whether it is a variable's own memory, which the next step changes
  uint64_t offset = 0;       // of its first byte in the file
};

struct PlannedPiece {
  std::size_t tensor = 0;
  std::size_t number = 0;  // of the tensor's pieces
  uint64_t begin = 0;      // the first byte, of the tensor's
  uint64_t bytes = 0;
};

struct WritePlan {
  std::vector<PlannedFile> files = {};
  std::vector<PlannedTensor> tensors = {};  // in the order of the manifest
  std::vector<PlannedPiece> pieces = {};    // in the order in which the files have them
};

/// A UsageError for a value or a name that cannot be saved.
WritePlan plan_of(const Image& image);

/// Some of a plan's pieces: those from `begin` to before `end`.
struct Share {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};
/// The pieces of one of so many writers: all have about the same number of bytes.
Share share_of(const WritePlan& plan, int64_t writer, int64_t writers);

/// The bytes of each piece of a share, where they are now; none of a table's piece, whose bytes are made.
std::vector<std::span<const std::byte>> bytes_of(const WritePlan& plan, const Share& share);

}  // namespace lockstep::internal::checkpoint
