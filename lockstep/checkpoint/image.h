// A checkpoint in memory, and between memory and a folder.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/folder/manifest.h"
#include "lockstep/checkpoint/formats/tensor_file.h"
#include "lockstep/strategy/served_state.h"

namespace lockstep::internal::inline checkpoint {

/// One value of an item of a run's state.
struct ImageTensor {
  std::string kind = {};         // "mirrored", "on-read", "slot"
  std::string name = {};         // the item's
  int64_t replica = -1;          // whose value it is; -1: that of all
  at::Tensor value = {};         // undefined where it was not read
  bool is_borrowed = false;      // whether it is a variable's own memory, which the next step changes
  std::string aggregation = {};  // as in RecordedTensor
};

/// The kind of tensors with rows of tables.
inline constexpr const char* kRowsKind = "rows";

/// The rows of a table that were read, or why they were not.
struct ReadTable {
  std::string misfit = {};
  std::shared_ptr<StagedTable> rows = {};  // null where they were not wanted, or do not fit
};

struct Image {
  RunRecord run = {};
  std::vector<ImageTensor> tensors = {};
  std::vector<ServedTensor> rows = {};                // of tables that are saved
  std::map<std::string, ReadTable> read_tables = {};  // of a restore: by name, those that the program has too
};

/// Writes a checkpoint into a folder, which is made where it is not there. When it returns, the checkpoint is durable.
/// A checkpoint that is in the folder stays whole until the new one takes its place, at once. Where it throws, the
/// folder has the checkpoint that it had before, or, where only making it durable has failed, the new one.
void save_image(Files& files, const std::filesystem::path& folder, const Image& image);

/// A DataError where the folder has no whole checkpoint: LS-CHECKPOINT-NONE without a manifest, LS-CHECKPOINT-DAMAGED.
Manifest read_manifest(Files& files, const std::filesystem::path& folder);

/// Some bytes of a tensor; by default all.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
};
/// Which bytes of a saved tensor are needed.
using NeededBytes = std::function<ByteRange(const RecordedTensor&, const TensorPlace&)>;

/// A checkpoint whose files are open: their sizes and headers are right, and have exactly the tensors of the manifest.
/// A DataError otherwise. One that is replaced while its files are being opened is opened anew.
class CheckpointReader {
 public:
  CheckpointReader(Files& files, const std::filesystem::path& folder);

  const Manifest& manifest() const { return manifest_; }
  /// Where tensor `i` of the manifest is, and in which shape it is stored.
  const TensorPlace& place(std::size_t i) const { return *places_[i]; }
  /// Its shape and dtype: "Float [2, 3]".
  std::string form(std::size_t i) const;
  /// Reads tensor `i`. A DataError where its bytes do not have its checksums.
  at::Tensor read(std::size_t i) const { return read(std::vector<std::size_t>{i}).front(); }
  /// Reads several, piece by piece, by as many threads as the files are good for. With `needed`, pieces without a byte
  /// that is needed are left out: they take no time, and what the value has there means nothing.
  std::vector<at::Tensor> read(const std::vector<std::size_t>& wanted, const NeededBytes& needed = {}) const;
  /// Reads piece `number` of tensor `i` as it is stored. A DataError where it does not have its checksum.
  void read_piece(std::size_t i, std::size_t number, std::vector<std::byte>& bytes) const;
  /// Memory for `count` of its rows, as they are stored.
  at::Tensor memory_for_rows(std::size_t i, int64_t count) const;
  /// "'runs/a/step-0000000012/weights.safetensors'"
  std::string file_of(std::size_t i) const;

 private:
  void open_files(Files& files);

  std::filesystem::path folder_;
  Manifest manifest_ = {};
  std::vector<TensorFile> files_;
  std::vector<const TensorPlace*> places_;
  int64_t threads_ = 1;
};

/// Everything of a checkpoint but rows of tables, with the tensors whose names `wants` accepts. Of those that `reads`
/// does not accept, the values are not read; `needed` as in CheckpointReader::read().
Image load_image(const CheckpointReader& reader, const std::function<bool(const std::string&)>& wants,
                 const std::function<bool(const RecordedTensor&)>& reads, const NeededBytes& needed = {});
/// All of it but rows of tables.
Image load_image(Files& files, const std::filesystem::path& folder);

/// Removes a checkpoint: first it is no longer one, then its files go. Other files in the folder stay, and then the
/// folder does too.
void remove_checkpoint(Files& files, const std::filesystem::path& folder);

/// Whether everything in a folder was left there by a save or a removal that was interrupted.
bool has_only_remains(Files& files, const std::filesystem::path& folder);

}  // namespace lockstep::internal::checkpoint
