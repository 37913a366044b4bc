// Files of records of any format: names, options and descriptions.
#include "lockstep/data/record_files.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/expand_paths.h"
#include "lockstep/data/formats/readers.h"

namespace lockstep::data {

namespace {

using MakeReader = std::unique_ptr<RecordReader> (*)(internal::Input, const RecordPlace&, int64_t);

class FormatFiles final : public RecordFiles {
 public:
  FormatFiles(const char* what, const std::vector<std::string>& paths, const RecordOptions& options, MakeReader make)
      : what_(what), files_(internal::expand_paths(paths)), max_bytes_(options.max_bytes), make_(make) {
    if (max_bytes_ >= 1) return;
    throw UsageError("LS-OPTION", fmt::format("{} were asked for with a .max_bytes of {}", what_, max_bytes_),
                     "give at least 1");
  }

  const std::vector<std::string>& files() const override { return files_; }

  std::unique_ptr<RecordReader> open(int64_t file, const RecordPlace& at) const override {
    if (file < 0 || file >= static_cast<int64_t>(files_.size()) || at.record < 0 || at.offset < 0) {
      throw UsageError(
          "LS-SAMPLE-RANGE",
          fmt::format("file {} of {} was to be opened at record {}, byte {}", file, describe(), at.record, at.offset),
          "give a place that a reader of these files gave");
    }
    return make_(internal::Input(files_[static_cast<std::size_t>(file)], at.offset), {file, at.record, at.offset},
                 max_bytes_);
  }

  std::string describe() const override {
    return fmt::format("{} of {} file{}, '{}'{}", what_, files_.size(), files_.size() == 1 ? "" : "s", files_.front(),
                       files_.size() == 1 ? "" : " and so on");
  }

 private:
  const char* const what_;
  const std::vector<std::string> files_;
  const int64_t max_bytes_;
  const MakeReader make_;
};

}  // namespace

std::shared_ptr<const RecordFiles> lines(const std::vector<std::string>& paths, const RecordOptions& options) {
  return std::make_shared<FormatFiles>("the lines", paths, options, &internal::make_line_reader);
}

std::shared_ptr<const RecordFiles> tf_records(const std::vector<std::string>& paths, const RecordOptions& options) {
  return std::make_shared<FormatFiles>("the TFRecords", paths, options, &internal::make_tf_record_reader);
}

std::shared_ptr<const RecordFiles> tar_samples(const std::vector<std::string>& paths, const RecordOptions& options) {
  return std::make_shared<FormatFiles>("the tar samples", paths, options, &internal::make_tar_reader);
}

}  // namespace lockstep::data
