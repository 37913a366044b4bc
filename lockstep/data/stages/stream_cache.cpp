// Stream::cache(): elements that are read once, and kept in memory or in a file.
#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/stages/element_file.h"
#include "lockstep/data/stages/stage_digest.h"
#include "lockstep/data/stages/stream_stage.h"

namespace lockstep::data {

using internal::append;
using internal::CacheKey;
using internal::ElementFile;
using internal::ElementRecording;
using internal::Elements;
using internal::ElementsInMemory;
using internal::GrowingElements;
using internal::PositionParts;
using internal::StreamStage;

namespace {

using Reader = std::unique_ptr<StreamReader>;

/// The file's path, whichever folder the program goes to, and with the target of a link, which need not be there.
std::string settled(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path file = fs::absolute(path, error);
  constexpr int kMostLinks = 40;  // as the system
  for (int i = 0; i < kMostLinks && !error && fs::is_symlink(file, error); ++i) {
    file = file.parent_path() / fs::read_symlink(file, error);
  }
  const fs::path whole = fs::weakly_canonical(file, error);
  return error ? path : whole.string();
}

/// What a process keeps in a file, while it does. Any thread.
class FilesInUse {
 public:
  /// Throws a DataError where the file is another stream's.
  static std::shared_ptr<const uint64_t> claim(const std::string& path, uint64_t digest) {
    static std::mutex mutex;
    static auto* const claims = new std::map<std::string, std::weak_ptr<const uint64_t>>;  // guarded by mutex
    const std::lock_guard<std::mutex> lock(mutex);
    std::erase_if(*claims, [](const auto& one) { return one.second.expired(); });
    auto& known = (*claims)[path];
    auto claim = known.lock();
    if (claim && *claim != digest) {
      throw DataError("LS-DATA-CHANGED", fmt::format("the cache '{}' is of another stream of this process", path),
                      "give each cache() a path of its own");
    }
    if (!claim) known = claim = std::make_shared<const uint64_t>(digest);
    return claim;
  }
};

/// Where a stage keeps its elements. Any thread.
class Kept {
 public:
  Kept() = default;  // in memory
  /// In a file. Throws a DataError where it cannot be used.
  Kept(const std::string& path, uint64_t digest)
      : path_(settled(path)), key_{.digest = digest}, claim_(FilesInUse::claim(path_, digest)) {
    if (!all()) ElementRecording::begin(path_, key_);  // says at once where it can never be written
  }

  /// Null until they were read to the end: by a reader of this stage, or, where they are in a file, by any other one.
  std::shared_ptr<const Elements> all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!all_ && is_in_file()) all_ = ElementFile::open(path_, key_);
    return all_;
  }
  /// For a pass from the beginning. Null where it need not be recorded.
  std::shared_ptr<GrowingElements> record() {
    if (is_given_up_) return nullptr;
    if (!is_in_file()) return std::make_shared<ElementsInMemory>();
    try {
      return ElementRecording::begin(path_, key_);
    } catch (const DataError& error) {
      internal::log(LogLevel::kWarning, std::string(error.what()) + "; the stream is read each time");
      give_up();
      return nullptr;
    }
  }
  /// These are all. False where they could not be kept.
  bool finish(std::shared_ptr<GrowingElements> recording) {
    if (!recording->finish()) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!all_ && !is_in_file()) all_ = std::move(recording);
    return true;
  }
  void to_kept_form(Batch& element) const { internal::to_kept_form(element, is_in_file()); }
  /// Nothing is recorded any more, so that what prevents it is said once, and not in each epoch.
  void give_up() { is_given_up_ = true; }

 private:
  bool is_in_file() const { return !path_.empty(); }

  const std::string path_;
  const CacheKey key_;
  const std::shared_ptr<const uint64_t> claim_;
  std::atomic<bool> is_given_up_{false};
  std::mutex mutex_;
  std::shared_ptr<const Elements> all_;  // guarded by mutex_
};

class KeptReader final : public StreamReader {
 public:
  KeptReader(std::shared_ptr<const Elements> all, int64_t given) : all_(std::move(all)), given_(given) {}
  bool next(Batch& element) override {
    if (given_ >= all_->size()) return false;
    std::optional<Batch> found = all_->find(given_++);
    element = all_->are_shared() ? internal::copied(std::move(*found)) : std::move(*found);
    return true;
  }
  /// The place in the upstream is not known.
  StreamPosition position() const override {
    StreamPosition position{given_};
    append(position, {});
    return position;
  }

 private:
  const std::shared_ptr<const Elements> all_;
  int64_t given_;
};

/// Reads the upstream, and records what it gives.
class RecordingReader final : public StreamReader {
 public:
  /// Behind the beginning nothing is recorded.
  RecordingReader(std::shared_ptr<Kept> kept, Reader upstream, int64_t given, StreamPosition there,
                  std::shared_ptr<SkippedSamples> skipped, std::string who)
      : kept_(std::move(kept)),
        recording_(there.empty() ? kept_->record() : nullptr),
        upstream_(std::move(upstream)),
        given_(given),
        there_(std::move(there)),
        skipped_(std::move(skipped)),
        skipped_before_(skipped_ ? skipped_->count() : 0),
        who_(std::move(who)) {}
  bool next(Batch& element) override {
    bool is_there = false;
    try {
      is_there = upstream_->next(element);
      look_for_skipped();
      if (is_there) {
        there_ = upstream_->position();
        ++given_;
        kept_->to_kept_form(element);
      }
    } catch (...) {
      recording_.reset();  // an element is missing
      throw;
    }
    record([&] { return is_there ? recording_->add(given_ - 1, element) : kept_->finish(recording_); });
    if (!is_there) recording_.reset();
    return is_there;
  }
  /// With the place in the upstream, for a process that has nothing kept.
  StreamPosition position() const override {
    StreamPosition position{given_};
    append(position, there_);
    return position;
  }

 private:
  /// Where `work` fails, the element is given all the same.
  template <class Work>
  void record(const Work& work) {
    if (!recording_) return;
    bool is_done = false;
    try {
      is_done = work();
    } catch (const std::exception& error) {
      internal::log(LogLevel::kWarning,
                    fmt::format("{}: nothing is kept: {}; the stream is read each time", who_, error.what()));
    }
    if (is_done) return;
    kept_->give_up();
    recording_.reset();
  }

  /// What was left out would be missing for ever, and be counted no more.
  void look_for_skipped() {
    if (!recording_ || !skipped_ || skipped_->count() == skipped_before_) return;
    internal::log(
        LogLevel::kWarning,
        fmt::format("{}: nothing is kept, because elements were left out; the stream is read each time", who_));
    kept_->give_up();
    recording_.reset();
  }

  const std::shared_ptr<Kept> kept_;
  std::shared_ptr<GrowingElements> recording_;
  const Reader upstream_;
  int64_t given_;
  StreamPosition there_;
  const std::shared_ptr<SkippedSamples> skipped_;
  const int64_t skipped_before_;
  const std::string who_;  // for the log
};

class CacheStage final : public StreamStage {
 public:
  CacheStage(const Stream& upstream, std::shared_ptr<Kept> kept) : StreamStage(upstream), kept_(std::move(kept)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    int64_t given = 0;
    StreamPosition there;
    if (!position.empty()) {
      PositionParts parts(position, describe());
      given = parts.number();
      there = parts.inner();
      parts.end();
    }
    if (auto all = kept_->all()) return std::make_unique<KeptReader>(std::move(all), given);
    StreamPass first;
    // Apart from what later stages leave out.
    if (pass.skipped) first.skipped = std::make_shared<SkippedSamples>(pass.skipped);
    const bool from_the_beginning = there.empty();
    Reader upstream = open_upstream(first, there);
    auto reader = std::make_unique<RecordingReader>(kept_, std::move(upstream), from_the_beginning ? 0 : given,
                                                    std::move(there), first.skipped, describe());
    if (!from_the_beginning) return reader;
    // A place among kept elements that are there no more: read up to it.
    Batch element;
    for (int64_t i = 0; i < given && reader->next(element); ++i) continue;
    return reader;
  }
  std::string describe() const override { return fmt::format("cached {}", upstream().describe()); }
  int64_t num_shards() const override { return 1; }  // one place for all of it

 private:
  const std::shared_ptr<Kept> kept_;
};

/// What the stream's elements are, as far as it says so.
uint64_t digest_of(const StreamSource& stream) {
  uint64_t digest = stream.digest();
  for (const StreamSource::File& file : stream.files()) digest = internal::mixed(digest, file.digest);
  return digest;
}

}  // namespace

Stream Stream::cache(const std::string& path) const {
  auto kept = path.empty() ? std::make_shared<Kept>() : std::make_shared<Kept>(path, digest_of(*source()));
  return Stream(std::make_shared<CacheStage>(*this, std::move(kept)));
}

}  // namespace lockstep::data
