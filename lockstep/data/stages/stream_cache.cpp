// Stream::cache(): elements that are read once, and kept in memory or in a file.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/stages/element_file.h"
#include "lockstep/data/stages/stage_digest.h"
#include "lockstep/data/stages/stream_stage.h"

namespace lockstep::data {

using internal::append;
using internal::ElementFile;
using internal::ElementFileWriter;
using internal::PositionParts;
using internal::StreamStage;

namespace {

using Reader = std::unique_ptr<StreamReader>;

/// All elements of a stream. Any thread.
class Elements {
 public:
  virtual ~Elements() = default;
  virtual int64_t size() const = 0;
  /// In memory of its own.
  virtual Batch at(int64_t i) const = 0;
};

/// Takes the elements of one pass, in their order.
class Recording {
 public:
  virtual ~Recording() = default;
  /// False where it takes no more.
  virtual bool add(const Batch& element) = 0;
  /// These were all. False where they could not be kept.
  virtual bool finish() = 0;
};

/// Where a stage keeps its elements. Any thread.
class Kept {
 public:
  virtual ~Kept() = default;
  /// Null until they were read to the end.
  virtual std::shared_ptr<const Elements> all() = 0;
  /// For a pass from the beginning. Null where it need not be recorded.
  virtual std::unique_ptr<Recording> record() = 0;
  /// Gives an element the form in which it is kept, so that all passes have the same bits: LibTorch's operators may add
  /// in another order where strides differ.
  virtual void to_kept_form(Batch& element) const = 0;

  /// Nothing is recorded any more, so that what prevents it is said once, and not in each epoch.
  void give_up() { is_given_up_ = true; }
  bool is_given_up() const { return is_given_up_; }

 private:
  std::atomic<bool> is_given_up_{false};
};

class ElementsInMemory final : public Elements {
 public:
  explicit ElementsInMemory(std::vector<Batch> all) : all_(std::move(all)) {}
  int64_t size() const override { return static_cast<int64_t>(all_.size()); }
  Batch at(int64_t i) const override { return internal::copied(all_[static_cast<std::size_t>(i)]); }

 private:
  const std::vector<Batch> all_;
};

class KeptInMemory final : public Kept, public std::enable_shared_from_this<KeptInMemory> {
 public:
  std::shared_ptr<const Elements> all() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return all_;
  }
  std::unique_ptr<Recording> record() override {
    return is_given_up() ? nullptr : std::make_unique<MemoryRecording>(shared_from_this());
  }
  void to_kept_form(Batch& element) const override {
    for_each_tensor(element, [](at::Tensor& tensor) {
      // Copies of others get other strides.
      const bool stays = !tensor.defined() || tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense();
      if (!stays) tensor = tensor.clone();
    });
  }

 private:
  class MemoryRecording final : public Recording {
   public:
    explicit MemoryRecording(std::shared_ptr<KeptInMemory> kept) : kept_(std::move(kept)) {}
    bool add(const Batch& element) override {
      read_.push_back(internal::copied(element));
      return true;
    }
    bool finish() override {
      const std::lock_guard<std::mutex> lock(kept_->mutex_);
      if (!kept_->all_) kept_->all_ = std::make_shared<const ElementsInMemory>(std::move(read_));
      return true;
    }

   private:
    const std::shared_ptr<KeptInMemory> kept_;
    std::vector<Batch> read_;
  };

  std::mutex mutex_;
  std::shared_ptr<const Elements> all_;  // guarded by mutex_
};

class ElementsInFile final : public Elements {
 public:
  explicit ElementsInFile(std::shared_ptr<const ElementFile> file) : file_(std::move(file)) {}
  int64_t size() const override { return file_->size(); }
  Batch at(int64_t i) const override { return file_->read(i); }

 private:
  const std::shared_ptr<const ElementFile> file_;
};

class FileRecording final : public Recording {
 public:
  explicit FileRecording(std::unique_ptr<ElementFileWriter> writer) : writer_(std::move(writer)) {}
  bool add(const Batch& element) override { return writer_->add(element); }
  bool finish() override { return writer_->finish(); }

 private:
  const std::unique_ptr<ElementFileWriter> writer_;
};

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

class KeptInFile final : public Kept {
 public:
  /// Throws a DataError where the file cannot be used.
  KeptInFile(const std::string& path, uint64_t digest)
      : path_(settled(path)), digest_(digest), claim_(FilesInUse::claim(path_, digest)) {
    if (!look()) ElementFileWriter::make(path_, digest_);  // says at once where it can never be written
  }
  std::shared_ptr<const Elements> all() override { return look(); }
  std::unique_ptr<Recording> record() override {
    if (is_given_up()) return nullptr;
    try {
      auto writer = ElementFileWriter::make(path_, digest_);
      return writer ? std::make_unique<FileRecording>(std::move(writer)) : nullptr;
    } catch (const DataError& error) {
      internal::log(LogLevel::kWarning, std::string(error.what()) + "; the stream is read each time");
      give_up();
      return nullptr;
    }
  }
  void to_kept_form(Batch& element) const override {
    for_each_tensor(element, [](at::Tensor& tensor) {
      if (tensor.defined() && tensor.layout() == at::kStrided) tensor = tensor.detach().contiguous();
    });
  }

 private:
  std::shared_ptr<const Elements> look() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!all_) {
      // Another reader, or another process, may have written it.
      if (auto file = ElementFile::open(path_, digest_)) all_ = std::make_shared<const ElementsInFile>(std::move(file));
    }
    return all_;
  }

  const std::string path_;
  const uint64_t digest_;
  const std::shared_ptr<const uint64_t> claim_;
  std::mutex mutex_;
  std::shared_ptr<const Elements> all_;  // guarded by mutex_
};

class KeptReader final : public StreamReader {
 public:
  KeptReader(std::shared_ptr<const Elements> all, int64_t given) : all_(std::move(all)), given_(given) {}
  bool next(Batch& element) override {
    if (given_ >= all_->size()) return false;
    element = all_->at(given_++);
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
    record([&] { return is_there ? recording_->add(element) : recording_->finish(); });
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
  std::unique_ptr<Recording> recording_;
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
  if (path.empty()) return Stream(std::make_shared<CacheStage>(*this, std::make_shared<KeptInMemory>()));
  return Stream(std::make_shared<CacheStage>(*this, std::make_shared<KeptInFile>(path, digest_of(*source()))));
}

}  // namespace lockstep::data
