// from_records(): the records of files as a stream.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/formats/records/readers.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/stages/interleave.h"
#include "lockstep/data/stages/stream_stage.h"
#include "lockstep/data/stream.h"

namespace lockstep::data {

using internal::PositionParts;

namespace {

constexpr int kRecordBits = 40;  // of an id; the file's number has the others

struct Records {
  std::shared_ptr<const RecordFiles> files;
  ParseFunction parse;
};

/// Invariant: a place is known of a record that was given, so a reader that continues reads that record once more.
class FileReader final : public StreamReader {
 public:
  FileReader(std::shared_ptr<const Records> records, int64_t file, std::shared_ptr<SkippedSamples> skipped,
             std::optional<RecordPlace> last)
      : records_(std::move(records)), file_(file), skipped_(std::move(skipped)), last_(last) {}

  bool next(Batch& element) override {
    while (!ended_) {
      try {
        if (!reader_) open();
        std::string bytes;
        if (!reader_->next(bytes)) {
          ended_ = true;
          break;
        }
        last_error_.clear();
        const RecordPlace place = reader_->place();
        last_ = place;
        element = parsed(bytes, place);
        return true;
      } catch (const DataError& error) {
        if (!skipped_) throw;
        skipped_->add(reader_ ? std::current_exception() : of_whole_file(error));
        ends_where_it_stays(error.what());
      }
    }
    return false;
  }

  StreamPosition position() const override {
    if (!last_) return {};
    return {last_->record, last_->offset};
  }

 private:
  void open() {
    RecordPlace at = last_.value_or(RecordPlace{file_});
    at.file = file_;
    auto reader = records_->files->open(file_, at);
    std::string bytes;
    if (last_) reader->next(bytes);
    reader_ = std::move(reader);
  }

  /// What is thrown where the file cannot even be opened. A lack of memory or of file descriptors stays what it is.
  std::exception_ptr of_whole_file(const DataError& error) const {
    if (error.code() == "LS-FILE-LIMIT") return std::current_exception();
    const std::string what = error.what();
    return std::make_exception_ptr(internal::RestOfFileError(
        "LS-DATA-FILE",
        fmt::format("no record of '{}' can be read, and how many it has is not known: {}",
                    records_->files->files()[static_cast<std::size_t>(file_)], what.substr(0, what.find('\n'))),
        error.remedy()));
  }

  /// A reader that cannot get past a place gives the same error again. Where errors are skipped, the rest of its file
  /// is left out.
  void ends_where_it_stays(const std::string& error) {
    if (!reader_ || error == last_error_) ended_ = true;
    last_error_ = error;
  }

  Batch parsed(const std::string& bytes, const RecordPlace& place) const {
    const std::string& name = records_->files->files()[static_cast<std::size_t>(file_)];
    try {
      Batch sample = records_->parse(bytes, place);
      internal::check_rows(sample, 1, "the function that parses records");
      const int64_t id = (file_ << kRecordBits) + place.record;
      sample.ids = internal::ids_tensor({&id, 1});
      return sample;
    } catch (...) {
      std::throw_with_nested(
          DataError("LS-RECORD",
                    fmt::format("record {} of '{}', at byte {}, cannot be parsed: {}", place.record, name, place.offset,
                                message_of(std::current_exception())),
                    "correct the record or the function; std::rethrow_if_nested gives the exception itself"));
    }
  }

  const std::shared_ptr<const Records> records_;
  const int64_t file_;
  const std::shared_ptr<SkippedSamples> skipped_;
  std::optional<RecordPlace> last_;  // the record that was given last
  std::unique_ptr<RecordReader> reader_;
  std::string last_error_;
  bool ended_ = false;
};

class FileStream final : public StreamSource {
 public:
  FileStream(std::shared_ptr<const Records> records, int64_t file) : records_(std::move(records)), file_(file) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    std::optional<RecordPlace> last;
    if (!position.empty()) {
      PositionParts parts(position, describe());
      const int64_t record = parts.number();
      last = RecordPlace{file_, record, parts.number()};
      parts.end();
    }
    return std::make_unique<FileReader>(records_, file_, pass.skipped, last);
  }
  std::string describe() const override { return records_->files->files()[static_cast<std::size_t>(file_)]; }
  std::vector<File> files() const override { return {{describe(), internal::digest_of_file(describe())}}; }

 private:
  const std::shared_ptr<const Records> records_;
  const int64_t file_;
};

/// The files' streams in turn, which it adds the names of records to.
class RecordStream final : public internal::StreamStage {
 public:
  RecordStream(const Stream& files, std::shared_ptr<const Records> records)
      : StreamStage(files), records_(std::move(records)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    return upstream().open(pass, position);
  }
  std::string describe() const override { return upstream().describe(); }
  std::string name_of(int64_t id) const override {
    const std::vector<std::string>& files = records_->files->files();
    const auto file = static_cast<std::size_t>(id >> kRecordBits);
    if (file >= files.size()) return StreamSource::name_of(id);
    return fmt::format("record {} of '{}'", id & ((int64_t{1} << kRecordBits) - 1), files[file]);
  }

 private:
  const std::shared_ptr<const Records> records_;
};

}  // namespace

Stream from_records(std::shared_ptr<const RecordFiles> files, ParseFunction parse, const InterleaveOptions& options) {
  if (!files || files->files().empty()) {
    throw UsageError("LS-OPTION", "from_records was given no files", "give the files that hold the records");
  }
  const auto count = static_cast<int64_t>(files->files().size());
  if (count >= int64_t{1} << (63 - kRecordBits)) {
    throw UsageError("LS-OPTION", fmt::format("from_records was given {} files", count),
                     "give fewer than 8,388,608 files");
  }
  const std::string name = files->describe();
  const auto records = std::make_shared<const Records>(std::move(files), std::move(parse));
  std::vector<std::shared_ptr<const StreamSource>> all;
  for (int64_t file = 0; file < count; ++file) all.push_back(std::make_shared<FileStream>(records, file));
  const Stream stream = internal::interleaved(std::move(all), options, internal::InterleavedIds::kKept, name);
  return Stream(std::make_shared<RecordStream>(stream, records));
}

}  // namespace lockstep::data
