// cache(): samples that are read once, and kept in memory or in a file.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/sources/sample_bytes.h"
#include "lockstep/data/stages/cache_file.h"
#include "lockstep/data/stages/cache_io.h"
#include "lockstep/data/stages/stage.h"

namespace lockstep {

namespace internal {

namespace {

constexpr uint64_t kMagic = 0x3145484341434c53;  // "SLCACHE1"

struct Head {
  uint64_t magic = kMagic;
  uint64_t digest = 0;
  int64_t size = 0;
};

struct RecordHead {
  int64_t id = 0;
  int64_t length = 0;
  uint64_t checksum = 0;
};

}  // namespace

CacheFile::CacheFile(std::string path, uint64_t digest, int64_t size) : path_(std::move(path)) {
  FileDescriptor file(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.is_open()) refuse_cache(path_, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse_cache(path_, 0);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    log(LogLevel::kInfo, fmt::format("the cache '{}' is in use by another reader; samples are read without it", path_));
    return;
  }
  file_ = std::move(file);
  Head head;
  if (status.st_size < static_cast<int64_t>(sizeof head)) {
    begin(digest, size);
  } else if (!read_at(file_.get(), &head, sizeof head, 0) || head.magic != kMagic || head.digest != digest ||
             head.size != size) {
    throw DataError("LS-DATA-CHANGED",
                    fmt::format("the cache '{}' holds {}", path_,
                                head.magic != kMagic ? "something else than samples"
                                : head.size != size ? fmt::format("{} samples of a data set of another size", head.size)
                                                    : std::string("samples of other data")),
                    "remove it, or give another path");
  }
  places_.resize(static_cast<std::size_t>(size));
  end_ = sizeof head;
  find_records(status.st_size);
}

void CacheFile::begin(uint64_t digest, int64_t size) {
  const Head head{kMagic, digest, size};
  full_ = ftruncate(file_.get(), 0) != 0 || !write_at(file_.get(), &head, sizeof head, 0);
  if (full_) log(LogLevel::kWarning, fmt::format("the cache '{}' cannot be written: {}", path_, std::strerror(errno)));
}

void CacheFile::find_records(int64_t length) {
  RecordHead head;
  const auto head_size = static_cast<int64_t>(sizeof head);
  while (length - end_ >= head_size && read_at(file_.get(), &head, sizeof head, end_)) {
    const bool fits = head.id >= 0 && head.id < static_cast<int64_t>(places_.size()) && head.length > 0 &&
                      head.length <= length - end_ - head_size;
    if (!fits) break;
    places_[static_cast<std::size_t>(head.id)] = {end_ + head_size, head.length, head.checksum};
    end_ += head_size + head.length;
  }
}

std::optional<Batch> CacheFile::read(int64_t id) const {
  Place place;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    place = places_[static_cast<std::size_t>(id)];
  }
  if (place.offset < 0) return std::nullopt;
  std::string bytes(static_cast<std::size_t>(place.length), '\0');
  if (!read_at(file_.get(), bytes.data(), bytes.size(), place.offset)) return std::nullopt;
  if (XXH3_64bits(bytes.data(), bytes.size()) != place.checksum) return std::nullopt;
  return sample_of(bytes);
}

void CacheFile::add(int64_t id, const Batch& sample) {
  const std::string bytes = bytes_of(sample);
  const RecordHead head{id, static_cast<int64_t>(bytes.size()), XXH3_64bits(bytes.data(), bytes.size())};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (full_) return;
  const auto head_size = static_cast<int64_t>(sizeof head);
  if (!write_at(file_.get(), bytes.data(), bytes.size(), end_ + head_size) ||
      !write_at(file_.get(), &head, sizeof head, end_)) {
    full_ = true;
    log(LogLevel::kWarning, fmt::format("the cache '{}' takes no more samples: {}; the others are read each time",
                                        path_, std::strerror(errno)));
    if (ftruncate(file_.get(), end_) != 0) return;  // what is cut off is dropped at the next opening too
    return;
  }
  places_[static_cast<std::size_t>(id)] = {end_ + head_size, head.length, head.checksum};
  end_ += head_size + head.length;
}

}  // namespace internal

namespace data {

namespace {

/// Samples that were read, by number.
class Kept {
 public:
  virtual ~Kept() = default;
  virtual std::optional<Batch> find(int64_t id) const = 0;
  virtual void add(int64_t id, const Batch& sample) = 0;
};

class KeptInMemory final : public Kept {
 public:
  explicit KeptInMemory(int64_t size) : samples_(static_cast<std::size_t>(size)) {}
  std::optional<Batch> find(int64_t id) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return samples_[static_cast<std::size_t>(id)];
  }
  void add(int64_t id, const Batch& sample) override {
    Batch own = internal::copied(sample);  // a view would keep all rows that were read with it
    const std::lock_guard<std::mutex> lock(mutex_);
    samples_[static_cast<std::size_t>(id)] = std::move(own);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::optional<Batch>> samples_;  // guarded by mutex_
};

class KeptInFile final : public Kept {
 public:
  KeptInFile(const std::string& path, uint64_t digest, int64_t size) : file_(path, digest, size) {}
  bool is_open() const { return file_.is_open(); }
  std::optional<Batch> find(int64_t id) const override { return file_.read(id); }
  void add(int64_t id, const Batch& sample) override { file_.add(id, sample); }

 private:
  internal::CacheFile file_;
};

/// Where another process uses the file.
class KeptNowhere final : public Kept {
 public:
  std::optional<Batch> find(int64_t /*id*/) const override { return std::nullopt; }
  void add(int64_t /*id*/, const Batch& /*sample*/) override {}
};

class CacheStage final : public internal::EachStage {
 public:
  CacheStage(const Dataset& upstream, std::shared_ptr<Kept> kept) : EachStage(upstream), kept_(std::move(kept)) {}
  std::string describe() const override { return fmt::format("cached {}", upstream().describe()); }
  std::shared_ptr<const Source> at_epoch(const Pass& /*pass*/) const override { return nullptr; }
  Batch read(std::span<const int64_t> ids) const override {
    std::vector<Batch> samples(ids.size());
    std::vector<int64_t> missing;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (std::optional<Batch> found = kept_->find(ids[i])) {
        samples[i] = std::move(*found);
      } else {
        missing.push_back(ids[i]);
        places.push_back(i);
      }
    }
    const std::vector<int64_t> known = ids_at(ids);
    const internal::SampleNames names{[this](int64_t id) { return name_of(id); }, known};
    // What is kept is not given away: joining copies it, but for a single sample.
    if (missing.empty() && samples.size() == 1) return internal::copied(std::move(samples.front()));
    if (missing.empty() && !samples.empty()) return internal::joined_rows(samples, describe(), names);
    const Batch read = read_upstream(missing);
    for (std::size_t m = 0; m < missing.size(); ++m) {
      samples[places[m]] = internal::rows_of(read, static_cast<int64_t>(m), 1);
      kept_->add(missing[m], samples[places[m]]);
    }
    return missing.size() == ids.size() ? read : internal::joined_rows(samples, describe(), names);
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<CacheStage>(upstream, kept_);
  }

 private:
  const std::shared_ptr<Kept> kept_;
};

}  // namespace

Dataset Dataset::cache(const std::string& path) const {
  if (path.empty()) return Dataset(std::make_shared<CacheStage>(*this, std::make_shared<KeptInMemory>(size())));
  auto kept = std::make_shared<KeptInFile>(path, source()->digest(), size());
  if (kept->is_open()) return Dataset(std::make_shared<CacheStage>(*this, std::move(kept)));
  return Dataset(std::make_shared<CacheStage>(*this, std::make_shared<KeptNowhere>()));
}

}  // namespace data
}  // namespace lockstep
