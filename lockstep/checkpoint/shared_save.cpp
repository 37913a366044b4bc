#include "lockstep/checkpoint/shared_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal {

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
    throw DataError("LS-FILE",
                    fmt::format("'{}' does not have the {} checksums that it should have", record.string(), count),
                    "see that all workers run the same program, and that their folder is one and the same");
  }
  std::vector<std::string> checksums;
  for (std::size_t i = 0; i < count; ++i) checksums.push_back(text.substr(i * (kDigits + 1), kDigits));
  return checksums;
}

}  // namespace

SharedSave::SharedSave(Files& files, fs::path directory, uint64_t save, std::vector<int64_t> writers, std::size_t index,
                       std::shared_ptr<const GiveUp> give_up)
    : files_(files),
      directory_(std::move(directory)),
      save_(save),
      writers_(std::move(writers)),
      index_(index),
      give_up_(std::move(give_up)) {
  // Under its name it is there only when it is locked, so that nobody takes it for one that was left.
  mark_ = files_.lock(path(WriterFile::kNewMark, index_));
  if (!mark_) {
    throw DataError("LS-FILE", fmt::format("'{}' could not be locked", path(WriterFile::kNewMark, index_).string()),
                    "look at the folder: another program locks files in it");
  }
  files_.rename(path(WriterFile::kNewMark, index_), path(WriterFile::kMark, index_));
}

fs::path SharedSave::path(WriterFile file, std::size_t index) const {
  return directory_ / writer_file_name(file, writers_[index], save_);
}

bool SharedSave::is_at_work(std::size_t index) const {
  const fs::path mark = path(WriterFile::kMark, index);
  return has_name(files_.list(directory_), mark.filename().string()) && files_.lock(mark) == nullptr;
}

void SharedSave::wait_for(std::size_t index, const fs::path& folder,
                          const std::function<bool(const std::vector<std::string>&)>& is_there) const {
  constexpr std::chrono::milliseconds kLongestPause(100);
  std::chrono::milliseconds pause(1);
  while (true) {
    const bool was_at_work = is_at_work(index);
    if (is_there(files_.list(folder))) return;  // looked at last: it may have ended in between
    if (!was_at_work || give_up_->is_due()) {
      throw DataError("LS-CHECKPOINT-SHARE",
                      fmt::format("worker {} {} its part of a checkpoint in '{}'", writers_[index],
                                  was_at_work ? "did not finish in time" : "has failed, or ended, before it finished",
                                  folder.string()),
                      "look at that worker's own message; the checkpoint before this one is whole");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

void SharedSave::write(const fs::path& folder, const WritePlan& plan, const PlannedBytes& mine) {
  std::vector<fs::path> paths;
  for (const PlannedFile& one : plan.files) paths.push_back(folder / part_name(one.stem, save_));
  constexpr std::size_t kChief = 0;
  wait_for(kChief, folder, [&](const std::vector<std::string>& names) {
    return std::all_of(paths.begin(), paths.end(),
                       [&](const fs::path& one) { return has_name(names, one.filename().string()); });
  });
  std::vector<std::unique_ptr<NewFile>> parts;
  for (const fs::path& one : paths) parts.push_back(files_.open_to_write(one));
  std::string text;
  for (const std::string& checksum : write_pieces(files_, plan, mine, parts)) text += checksum + "\n";
  for (const auto& part : parts) part->sync();
  const fs::path part = path(WriterFile::kNewRecord, index_);
  files_.create(part)->write(0, std::as_bytes(std::span(text)));
  files_.rename(part, path(WriterFile::kRecord, index_));
  files_.remove_file(path(WriterFile::kMark, index_));
  mark_.reset();
}

void SharedSave::wait_for_others(const WritePlan& plan,
                                 const std::function<void(const Share&, const std::vector<std::string>&)>& give) const {
  for (std::size_t i = 1; i < writers_.size(); ++i) {
    const fs::path record = path(WriterFile::kRecord, i);
    wait_for(i, directory_,
             [&](const std::vector<std::string>& names) { return has_name(names, record.filename().string()); });
    const Share share = share_of(plan, static_cast<int64_t>(i), num_writers());
    give(share, checksums_in(files_, record, share.size()));
  }
}

void SharedSave::end() {
  for (std::size_t i = 1; i < writers_.size(); ++i) files_.remove_file(path(WriterFile::kRecord, i));
  files_.remove_file(path(WriterFile::kMark, index_));
  mark_.reset();
}

void SharedSave::clean(Files& files, const fs::path& directory) {
  for (const std::string& name : files.list(directory)) {
    if (is_writer_file(name)) files.remove_file(directory / name);
  }
}

}  // namespace lockstep::internal
