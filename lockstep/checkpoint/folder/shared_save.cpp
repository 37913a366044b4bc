#include "lockstep/checkpoint/folder/shared_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kDigits = 32;  // of a checksum

bool has_name(const std::vector<std::string>& names, std::string_view name) {
  return std::binary_search(names.begin(), names.end(), name);
}

/// The checksums in a record: one in each line.
std::vector<std::string> checksums_in(Files& files, const fs::path& record, std::size_t count) {
  const std::unique_ptr<OpenFile> file = files.open(record);
  std::string text(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  if (text.size() != count * (kDigits + 1)) {
    throw DataError("LS-FILE", fmt::format("'{}' does not have {} checksums", record.string(), count),
                    "run the same program on all workers");
  }
  std::vector<std::string> checksums;
  for (std::size_t i = 0; i < count; ++i) checksums.push_back(text.substr(i * (kDigits + 1), kDigits));
  return checksums;
}

void remove_if_possible(Files& files, const fs::path& path) {
  try {
    files.remove_file(path);
  } catch (const DataError&) {  // the next save tries again
  }
}

}  // namespace

void Deadline::require_wanted(const fs::path& folder) const {
  if (!is_abandoned_) return;
  throw PeerError("LS-CHECKPOINT-SHARE", fmt::format("the save of '{}' was given up", folder.string()),
                  "look at the error that its call threw");
}

SharedSave::SharedSave(Files& files, fs::path directory, uint64_t number, std::vector<int64_t> writers,
                       std::size_t index, std::shared_ptr<const Deadline> deadline)
    : files_(files),
      directory_(std::move(directory)),
      number_(number),
      writers_(std::move(writers)),
      index_(index),
      deadline_(std::move(deadline)) {
  // It gets its name when it is locked, so that nobody takes it for one whose worker has ended.
  mark_ = files_.lock(path(WriterFile::kNewMark, index_));
  if (!mark_) {
    throw DataError("LS-FILE", fmt::format("'{}' could not be locked", path(WriterFile::kNewMark, index_).string()),
                    "stop the other program that locks files in this folder");
  }
  files_.rename(path(WriterFile::kNewMark, index_), path(WriterFile::kMark, index_));
}

fs::path SharedSave::path(WriterFile file, std::size_t index) const {
  return directory_ / writer_file_name(file, writers_[index], number_);
}

void SharedSave::wait_for(std::size_t index, const fs::path& folder, const std::function<bool()>& is_there) const {
  constexpr std::chrono::milliseconds kLongestPause(100);
  std::chrono::milliseconds pause(1);
  while (true) {
    const bool was_at_work = files_.is_locked(path(WriterFile::kMark, index));
    if (is_there()) return;  // looked at last: the worker may have ended in between
    if (!was_at_work || deadline_->is_over()) {
      throw PeerError("LS-CHECKPOINT-SHARE",
                      fmt::format("worker {} {} its share of the checkpoint '{}'", writers_[index],
                                  was_at_work ? "did not write in time" : "ended, or failed, before it had written",
                                  folder.string()),
                      "look at that worker's own message");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

void SharedSave::write(const fs::path& folder, const WritePlan& plan, const PlannedBytes& mine) {
  std::vector<fs::path> paths;
  for (const PlannedFile& one : plan.files) paths.push_back(folder / part_name(one.stem, number_));
  constexpr std::size_t kChief = 0;
  wait_for(kChief, folder, [&] {
    const std::vector<std::string> names = files_.list(folder);
    return std::all_of(paths.begin(), paths.end(),
                       [&](const fs::path& one) { return has_name(names, one.filename().string()); });
  });
  std::vector<std::unique_ptr<NewFile>> parts;
  for (const fs::path& one : paths) parts.push_back(files_.open_to_write(one));
  std::string text;
  for (const std::string& checksum : write_pieces(files_, plan, mine, parts)) text += checksum + "\n";
  for (const auto& part : parts) part->sync();
  deadline_->require_wanted(folder);
  const fs::path unfinished = path(WriterFile::kNewRecord, index_);
  files_.create(unfinished)->write(0, std::as_bytes(std::span(text)));
  files_.rename(unfinished, path(WriterFile::kRecord, index_));
  give_mark_back();
}

void SharedSave::wait_for_others(const fs::path& folder, const WritePlan& plan, const GiveChecksums& give) const {
  for (std::size_t i = 1; i < writers_.size(); ++i) {
    const fs::path record = path(WriterFile::kRecord, i);
    wait_for(i, folder, [&] { return has_name(files_.list(directory_), record.filename().string()); });
    const Share share = share_of(plan, static_cast<int64_t>(i), num_writers());
    give(share, checksums_in(files_, record, share.size()));
  }
}

void SharedSave::end() {
  for (std::size_t i = 1; i < writers_.size(); ++i) remove_if_possible(files_, path(WriterFile::kRecord, i));
  give_mark_back();
}

void SharedSave::give_mark_back() {
  remove_if_possible(files_, path(WriterFile::kMark, index_));
  mark_.reset();
}

void SharedSave::clean(Files& files, const fs::path& directory) {
  for (const std::string& name : files.list(directory)) {
    if (is_writer_file(name)) remove_if_possible(files, directory / name);
  }
}

}  // namespace lockstep::internal::checkpoint
