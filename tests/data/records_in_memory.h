// Files of records that lie in memory, with records that cannot be read.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/stream.h"

namespace lockstep::testing {

/// Each file is a list of records, which are numbers as text. The record "!" fails its checksum; the file "gone" cannot
/// be opened; a reader cannot get past the record "stuck".
class RecordsInMemory final : public data::RecordFiles {
 public:
  explicit RecordsInMemory(std::vector<std::vector<std::string>> contents) : contents_(std::move(contents)) {
    for (std::size_t i = 0; i < contents_.size(); ++i) names_.push_back("file" + std::to_string(i));
  }
  const std::vector<std::string>& files() const override { return names_; }
  std::string describe() const override { return "records in memory"; }
  std::unique_ptr<data::RecordReader> open(int64_t file, const data::RecordPlace& at) const override {
    ++opened;
    const auto& records = contents_[static_cast<std::size_t>(file)];
    if (!records.empty() && records.front() == "gone") throw DataError("LS-DATA-FILE", "the file is gone", "look");
    return std::make_unique<Reader>(*this, file, at.record);
  }
  mutable std::atomic<int64_t> opened = 0;
  mutable std::atomic<int64_t> read = 0;

 private:
  class Reader final : public data::RecordReader {
   public:
    Reader(const RecordsInMemory& all, int64_t file, int64_t next) : all_(all), file_(file), next_(next) {}
    bool next(std::string& bytes) override {
      const auto& records = all_.contents_[static_cast<std::size_t>(file_)];
      if (next_ >= static_cast<int64_t>(records.size())) return false;
      const std::string& record = records[static_cast<std::size_t>(next_)];
      const std::string where = "record " + std::to_string(next_) + " of file" + std::to_string(file_);
      if (record == "stuck") throw DataError("LS-DATA-FILE", where + " is cut off", "get it again");
      place_ = {file_, next_, next_ * 100};
      ++next_;
      if (record == "!") throw DataError("LS-DATA-FILE", where + " fails its checksum", "get it again");
      ++all_.read;
      bytes = record;
      return true;
    }
    data::RecordPlace place() const override { return place_; }

   private:
    const RecordsInMemory& all_;
    const int64_t file_;
    int64_t next_;
    data::RecordPlace place_;
  };

  const std::vector<std::vector<std::string>> contents_;
  std::vector<std::string> names_;
};

/// Files of so many records each; the records are numbered through from 0.
inline std::shared_ptr<RecordsInMemory> files_of(const std::vector<int64_t>& sizes) {
  std::vector<std::vector<std::string>> contents;
  int64_t next = 0;
  for (const int64_t size : sizes) {
    auto& file = contents.emplace_back();
    for (int64_t i = 0; i < size; ++i) file.push_back(std::to_string(next++));
  }
  return std::make_shared<RecordsInMemory>(std::move(contents));
}

/// A sample whose input and target are the record's number.
inline Batch parse_number(const std::string& bytes, const data::RecordPlace& /*place*/) {
  const int64_t number = std::stoll(bytes);
  return {.input = torch::full({1, 2}, number, torch::kFloat), .target = torch::full({1}, number, torch::kLong)};
}

inline Stream numbers_in(const std::vector<int64_t>& sizes, const data::InterleaveOptions& options = {}) {
  return data::from_records(files_of(sizes), parse_number, options);
}

inline std::vector<int64_t> targets_of(const std::vector<Batch>& elements) {
  std::vector<int64_t> all;
  for (const Batch& element : elements) {
    const torch::Tensor targets = element.target.contiguous();
    all.insert(all.end(), targets.data_ptr<int64_t>(), targets.data_ptr<int64_t>() + targets.numel());
  }
  return all;
}

}  // namespace lockstep::testing
