// A file system in memory that knows what would survive a stop of the machine, and fails where a test wants it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {

namespace fs = std::filesystem;

/// The machine has stopped: nothing runs after it.
struct MachineStopped {};

/// What a stop leaves of what was not synced.
enum class Lost {
  kAll,             // names and bytes: as it was at the last syncs
  kNothing,         // everything reached the disk by itself
  kContents,        // names are there, and bytes that were not synced are zero
  kHalf,            // names are there, and of bytes that were not synced the first half
  kNewNames,        // names that were made or given anew are not there, and those that were removed are not either
  kAllButLastName,  // as kAll, but the last change of a name is on the disk: it went there before those of earlier
};

class ModelFiles : public internal::Files {
 public:
  /// Calls so far that can fail.
  int64_t calls() const { return calls_; }
  /// Bytes of files that were read so far.
  uint64_t bytes_read() const { return bytes_read_; }
  /// The n-th call from now, from 1, fails with this reason.
  void fail_at(int64_t n, const std::string& reason) { fail_at_ = calls_ + n, reason_ = reason; }
  /// From the n-th call on all fail: the disk is full, say.
  void fail_from(int64_t n, const std::string& reason) { fail_at(n, reason), for_good_ = true; }
  /// The machine stops before the n-th call has done anything.
  void stop_at(int64_t n) { stop_at_ = calls_ + n; }
  void work_again() { fail_at_ = stop_at_ = fail_read_at_ = -1, for_good_ = false; }
  /// The n-th time from now, from 1, that a file is opened to be read, or read, fails with this reason.
  void fail_read_at(int64_t n, const std::string& reason) {
    failed_read_.clear();
    fail_read_at_ = reads_ + n, reason_ = reason;
  }
  /// The file whose read has failed since; empty where none has.
  const fs::path& failed_read() const { return failed_read_; }
  /// The system cannot tell what is there under this path; an empty one ends it.
  void hide(const fs::path& path) { hidden_ = path; }
  /// What is there after the machine has started again.
  void restart(Lost lost) {
    work_again();
    if (lost == Lost::kNewNames) {
      std::erase_if(durable_, [&](const auto& one) { return !now_.contains(one.first); });
    }
    if (lost == Lost::kAllButLastName && last_change_) last_change_(durable_);
    const bool loses_all = lost == Lost::kAll || lost == Lost::kNewNames || lost == Lost::kAllButLastName;
    if (loses_all) now_ = durable_;
    for (auto& [path, node] : now_) {
      if (!node || node->synced == node->bytes) continue;
      if (loses_all) node->bytes = node->synced;
      if (lost == Lost::kContents) {
        node->synced.resize(node->bytes.size());
        node->bytes = node->synced;
      }
      if (lost == Lost::kHalf) node->bytes.resize((node->synced.size() + node->bytes.size()) / 2);
    }
    // Files are shared between the two maps: from here on each has its own.
    for (auto& [path, node] : now_) {
      if (!node) continue;
      node = std::make_shared<Node>(*node);
      node->synced = node->bytes;
    }
    durable_ = now_;
    last_change_ = nullptr;
    locks_.clear();
  }
  /// The bytes of a file, to be damaged.
  std::string& bytes(const fs::path& path) { return now_.at(path)->bytes; }
  std::vector<fs::path> all_files() const {
    std::vector<fs::path> paths;
    for (const auto& [path, node] : now_) {
      if (node) paths.push_back(path);
    }
    return paths;
  }

  std::unique_ptr<internal::NewFile> create(const fs::path& path) override {
    call(path);
    if (now_.contains(path)) refuse(path, "File exists");
    if (!is_folder_now(path.parent_path())) refuse(path, "No such file or directory");
    auto node = std::make_shared<Node>();
    change([=](Names& names) { names[path] = node; });
    return std::make_unique<Writing>(*this, path, node);
  }
  std::unique_ptr<internal::NewFile> open_to_write(const fs::path& path) override {
    call(path);
    const auto found = now_.find(path);
    if (found == now_.end() || !found->second) refuse(path, "No such file or directory");
    return std::make_unique<Writing>(*this, path, found->second);
  }
  std::unique_ptr<internal::OpenFile> open(const fs::path& path) override {
    const auto found = now_.find(path);
    if (found == now_.end() || !found->second) refuse(path, "No such file or directory");
    read(path);
    return std::make_unique<Reading>(*this, path, found->second);
  }
  bool has(const fs::path& path) override {
    if (!hidden_.empty() && path.string().starts_with(hidden_.string())) refuse(path, "Stale file handle");
    return now_.contains(path);
  }
  bool is_folder(const fs::path& path) override { return has(path) && !now_.at(path); }
  std::vector<std::string> list(const fs::path& folder) override {
    std::vector<std::string> names;
    for (const auto& [path, node] : now_) {
      if (path.parent_path() == folder && path != folder) names.push_back(path.filename().string());
    }
    return names;
  }
  bool make_folder(const fs::path& folder) override {
    if (is_folder_now(folder)) return false;
    make_folder(folder.parent_path());
    call(folder);
    change([=](Names& names) { names[folder] = nullptr; });
    sync_folder(folder.parent_path());
    return true;
  }
  void sync_folder(const fs::path& folder) override {
    call(folder);
    std::erase_if(durable_,
                  [&](const auto& one) { return one.first.parent_path() == folder && !now_.contains(one.first); });
    for (const auto& [path, node] : now_) {
      if (path.parent_path() == folder) durable_[path] = node;
    }
  }
  void rename(const fs::path& from, const fs::path& to) override {
    call(from);
    if (!now_.contains(from)) refuse(from, "No such file or directory");
    change([=, node = now_.at(from)](Names& names) {
      names[to] = node;
      names.erase(from);
    });
  }
  void remove_file(const fs::path& path) override {
    call(path);
    if (!now_.contains(path)) refuse(path, "No such file or directory");
    change([=](Names& names) { names.erase(path); });
  }
  void remove_folder(const fs::path& folder) override {
    call(folder);
    if (!list(folder).empty()) refuse(folder, "Directory not empty");
    // A disk that has no folder has none of its files either.
    change([=](Names& names) {
      std::erase_if(names, [&](const auto& one) { return one.first == folder || one.first.parent_path() == folder; });
    });
  }
  std::unique_ptr<internal::FileLock> lock(const fs::path& path) override {
    call(path);
    if (!is_folder_now(path.parent_path())) refuse(path, "No such file or directory");
    if (!now_.contains(path)) {
      change([=, node = std::make_shared<Node>()](Names& names) { names[path] = node; });
    }
    const std::shared_ptr<Node> node = now_.at(path);
    if (!locks_.insert(node).second) return nullptr;
    return std::make_unique<Lock>(*this, path, node);
  }
  bool is_locked(const fs::path& path) override {
    const auto found = now_.find(path);
    return found != now_.end() && locks_.contains(found->second);
  }

 private:
  struct Node {
    std::string bytes;
    std::string synced;
  };
  using Names = std::map<fs::path, std::shared_ptr<Node>>;  // null: a folder
  class Writing final : public internal::NewFile {
   public:
    Writing(ModelFiles& files, fs::path path, std::shared_ptr<Node> node)
        : files_(files), path_(std::move(path)), node_(std::move(node)) {}
    void write(uint64_t offset, std::span<const std::byte> bytes) override {
      files_.call(path_);
      if (node_->bytes.size() < offset + bytes.size()) node_->bytes.resize(offset + bytes.size());
      std::memcpy(node_->bytes.data() + offset, bytes.data(), bytes.size());
      if (!bytes.empty()) written_.emplace_back(offset, bytes.size());
    }
    /// Only of what was written by this one: the others may be on other hosts.
    void sync() override {
      files_.call(path_);
      for (const auto& [offset, size] : std::exchange(written_, {})) {
        if (node_->synced.size() < offset + size) node_->synced.resize(offset + size);
        std::memcpy(node_->synced.data() + offset, node_->bytes.data() + offset, size);
      }
    }

   private:
    ModelFiles& files_;
    fs::path path_;
    std::shared_ptr<Node> node_;
    std::vector<std::pair<uint64_t, std::size_t>> written_;  // since the last sync: offsets and sizes
  };
  class Reading final : public internal::OpenFile {
   public:
    Reading(ModelFiles& files, fs::path path, std::shared_ptr<Node> node)
        : files_(files), path_(std::move(path)), node_(std::move(node)) {}
    uint64_t size() const override { return node_->bytes.size(); }
    void read(uint64_t offset, std::span<std::byte> bytes) const override {
      files_.read(path_);
      if (offset > size() || bytes.size() > size() - offset) refuse(path_, "it ends");
      if (!bytes.empty()) std::memcpy(bytes.data(), node_->bytes.data() + offset, bytes.size());
      files_.bytes_read_ += bytes.size();
    }

   private:
    ModelFiles& files_;
    fs::path path_;
    std::shared_ptr<Node> node_;
  };
  class Lock final : public internal::FileLock {
   public:
    Lock(ModelFiles& files, fs::path path, std::shared_ptr<Node> node)
        : files_(files), path_(std::move(path)), node_(std::move(node)) {}
    ~Lock() override { files_.locks_.erase(node_); }
    bool is_in_place() const override {
      const auto found = files_.now_.find(path_);
      return found != files_.now_.end() && found->second == node_;
    }

   private:
    ModelFiles& files_;
    const fs::path path_;
    const std::shared_ptr<Node> node_;
  };

  [[noreturn]] static void refuse(const fs::path& path, const std::string& reason) {
    throw DataError("LS-FILE", "'" + path.string() + "': " + reason, "a test");
  }
  bool is_folder_now(const fs::path& path) const {
    if (path.empty() || path == "/") return true;
    const auto found = now_.find(path);
    return found != now_.end() && !found->second;
  }
  void call(const fs::path& path) {
    ++calls_;
    if (stop_at_ >= 0 && calls_ >= stop_at_) throw MachineStopped();
    if (fail_at_ >= 0 && (calls_ == fail_at_ || (for_good_ && calls_ > fail_at_))) refuse(path, reason_);
  }

  void change(std::function<void(Names&)> one) {
    one(now_);
    last_change_ = std::move(one);
  }

  void read(const fs::path& path) {
    if (++reads_ != fail_read_at_) return;
    failed_read_ = path;
    refuse(path, reason_);
  }

  Names now_;
  Names durable_;  // as of the last sync of their folder
  std::function<void(Names&)> last_change_;
  std::set<std::shared_ptr<Node>> locks_;
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<int64_t> reads_{0};
  int64_t calls_ = 0;
  int64_t fail_at_ = -1;
  int64_t stop_at_ = -1;
  int64_t fail_read_at_ = -1;
  bool for_good_ = false;
  std::string reason_;
  fs::path hidden_;
  fs::path failed_read_;
};

}  // namespace lockstep::testing
