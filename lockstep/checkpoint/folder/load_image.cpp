// Reading a checkpoint: nothing of it is believed before its checksum was found to be right.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/core/error.h"
#include "lockstep/data/read_pool.h"

namespace lockstep::internal::inline checkpoint {

namespace fs = std::filesystem;

namespace {

std::string manifest_name(const fs::path& folder) { return fmt::format("'{}'", (folder / kManifestName).string()); }

std::string manifest_text(Files& files, const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  if (!files.has(path)) {
    throw DataError("LS-CHECKPOINT-NONE",
                    fmt::format("'{}' is no whole checkpoint: it has no {}", folder.string(), kManifestName),
                    "name the folder of a checkpoint, as `lockstep checkpoint list` shows them");
  }
  const std::unique_ptr<OpenFile> file = files.open(path);
  constexpr uint64_t kLongest = uint64_t{1} << 30;
  if (file->size() > kLongest) throw_damaged(fmt::format("'{}'", path.string()), "is longer than any manifest");
  std::string text(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// Whether the folder has another checkpoint by now than the one whose manifest `text` is.
bool was_replaced(Files& files, const fs::path& folder, const std::string& text) {
  try {
    return manifest_text(files, folder) != text;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

Manifest read_manifest(Files& files, const fs::path& folder) {
  return decode_manifest(manifest_text(files, folder), manifest_name(folder));
}

CheckpointReader::CheckpointReader(Files& files, const fs::path& folder)
    : folder_(folder), threads_(files.reading_threads()) {
  // Files that are open can be read to their end, whatever happens to their names.
  constexpr int kAttempts = 20;
  for (int attempt = 1;; ++attempt) {
    const std::string text = manifest_text(files, folder);
    manifest_ = decode_manifest(text, manifest_name(folder));
    try {
      open_files(files);
      return;
    } catch (const DataError&) {
      if (attempt == kAttempts || !was_replaced(files, folder, text)) throw;
    }
  }
}

void CheckpointReader::open_files(Files& files) {
  const fs::path& folder = folder_;
  files_.clear();
  places_.clear();
  std::vector<std::map<std::string, const TensorPlace*>> places;
  files_.reserve(manifest_.files.size());
  for (const RecordedFile& one : manifest_.files) {
    const std::string what = fmt::format("'{}'", (folder / one.name).string());
    if (!files.has(folder / one.name)) throw_damaged(what, "is missing, and the checkpoint's manifest names it");
    TensorFile& file = files_.emplace_back(files.open(folder / one.name), what);
    if (file.size() != one.bytes) {
      throw_damaged(what, fmt::format("has {} bytes, and {} were written", file.size(), one.bytes));
    }
    if (file.header_checksum() != one.header_checksum) throw_damaged(what, "has another header than was written");
    auto& of_file = places.emplace_back();
    for (const TensorPlace& place : file.header().tensors) of_file[place.name] = &place;
  }
  for (const RecordedTensor& one : manifest_.tensors) {
    const auto found = places[one.file].find(one.key);
    if (found == places[one.file].end()) {
      throw_damaged(fmt::format("'{}'", folder.string()),
                    fmt::format("has no tensor '{}', which its manifest names", shown(one.key)));
    }
    const TensorPlace& place = *found->second;
    if (one.checksums.size() != pieces_of(place.end - place.begin, manifest_.piece_bytes)) {
      throw_damaged(fmt::format("'{}'", folder.string()),
                    fmt::format("has {} checksums of '{}', which has another number of pieces", one.checksums.size(),
                                shown(one.key)));
    }
    places_.push_back(&place);
    places[one.file].erase(found);
  }
  for (const auto& of_file : places) {
    if (of_file.empty()) continue;
    throw_damaged(fmt::format("'{}'", folder.string()),
                  fmt::format("has a tensor '{}', which its manifest does not name", shown(of_file.begin()->first)));
  }
}

std::string CheckpointReader::form(std::size_t i) const {
  std::vector<int64_t> shape = places_[i]->shape;
  const std::string& dtype = manifest_.tensors[i].dtype;
  if (dtype.starts_with("Complex") && !shape.empty()) shape.pop_back();
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

std::vector<at::Tensor> CheckpointReader::read(const std::vector<std::size_t>& wanted,
                                               const NeededBytes& needed) const {
  struct Piece {
    std::size_t tensor;  // its place in `wanted`
    uint64_t begin, end;
    const std::string* checksum;
  };
  std::vector<at::Tensor> values;
  std::vector<Piece> pieces;
  for (const std::size_t i : wanted) {
    const RecordedTensor& one = manifest_.tensors[i];
    const uint64_t bytes = places_[i]->end - places_[i]->begin;
    const ByteRange range = needed ? needed(one, *places_[i]) : ByteRange();
    for (std::size_t p = 0; p < one.checksums.size(); ++p) {
      const uint64_t begin = p * manifest_.piece_bytes;
      const uint64_t end = begin + std::min(manifest_.piece_bytes, bytes - begin);
      const bool is_needed = !needed || (range.begin < range.end && range.begin < end && begin < range.end);
      if (!is_needed) continue;
      pieces.push_back({values.size(), begin, end, &one.checksums[p]});
    }
    values.push_back(files_[one.file].memory_for(*places_[i], one.dtype));
  }
  ReadPool pool(threads_);
  pool.run(static_cast<int64_t>(pieces.size()), [&](int64_t number) {
    const Piece& piece = pieces[static_cast<std::size_t>(number)];
    const std::size_t i = wanted[piece.tensor];
    const RecordedTensor& one = manifest_.tensors[i];
    const TensorFile& file = files_[one.file];
    if (file.read_bytes(*places_[i], values[piece.tensor], piece.begin, piece.end) == *piece.checksum) return;
    throw_damaged(file_of(i), fmt::format("has other bytes of '{}' than were written", shown(one.key)));
  });
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const RecordedTensor& one = manifest_.tensors[wanted[k]];
    values[k] = files_[one.file].finished(*places_[wanted[k]], one.dtype, values[k]);
  }
  return values;
}

std::string CheckpointReader::file_of(std::size_t i) const {
  return fmt::format("'{}'", (folder_ / manifest_.files[manifest_.tensors[i].file].name).string());
}

void CheckpointReader::read_piece(std::size_t i, std::size_t number, std::vector<std::byte>& bytes) const {
  const RecordedTensor& one = manifest_.tensors[i];
  const uint64_t all = places_[i]->end - places_[i]->begin;
  const uint64_t begin = number * manifest_.piece_bytes;
  bytes.resize(std::min(manifest_.piece_bytes, all - begin));
  if (files_[one.file].read_bytes(*places_[i], begin, bytes) == one.checksums[number]) return;
  throw_damaged(file_of(i), fmt::format("has other bytes of '{}' than were written", shown(one.key)));
}

at::Tensor CheckpointReader::memory_for_rows(std::size_t i, int64_t count) const {
  const RecordedTensor& one = manifest_.tensors[i];
  TensorPlace rows = *places_[i];
  if (rows.shape.empty()) throw_damaged(file_of(i), fmt::format("has '{}' without rows", shown(one.key)));
  rows.shape.front() = count;
  return files_[one.file].memory_for(rows, one.dtype);
}

Image load_image(const CheckpointReader& reader, const std::function<bool(const std::string&)>& wants,
                 const std::function<bool(const RecordedTensor&)>& reads, const NeededBytes& needed) {
  Image image{.run = reader.manifest().run};
  std::vector<std::size_t> read;    // by their places in the manifest
  std::vector<std::size_t> places;  // where they go in the image
  for (std::size_t i = 0; i < reader.manifest().tensors.size(); ++i) {
    const RecordedTensor& one = reader.manifest().tensors[i];
    if (one.kind == kRowsKind || !wants(one.name)) continue;
    if (reads(one)) {
      read.push_back(i);
      places.push_back(image.tensors.size());
    }
    image.tensors.push_back(
        {.kind = one.kind, .name = one.name, .replica = one.replica, .aggregation = one.aggregation});
  }
  std::vector<at::Tensor> values = reader.read(read, needed);
  for (std::size_t k = 0; k < read.size(); ++k) image.tensors[places[k]].value = std::move(values[k]);
  return image;
}

Image load_image(Files& files, const fs::path& folder) {
  return load_image(
      CheckpointReader(files, folder), [](const std::string&) { return true; },
      [](const RecordedTensor&) { return true; });
}

}  // namespace lockstep::internal::checkpoint
