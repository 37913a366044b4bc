// Files of records of any format: names, options and descriptions.
#include "lockstep/data/sources/record_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/expand_paths.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/formats/records/readers.h"

namespace lockstep::data {

namespace {

using internal::Input;
using MakeReader = std::unique_ptr<RecordReader> (*)(Input, const RecordPlace&, int64_t);

/// What files of all formats share.
class FilesOfRecords : public RecordFiles {
 public:
  FilesOfRecords(const char* what, const std::vector<std::string>& paths, const RecordOptions& options)
      : what_(what), files_(internal::expand_paths(paths)) {
    if (options.max_bytes >= 1) return;
    throw UsageError("LS-OPTION", fmt::format("{} were asked for with a .max_bytes of {}", what_, options.max_bytes),
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
    return open_file(files_[static_cast<std::size_t>(file)], {file, at.record, at.offset});
  }

  std::string describe() const override {
    return fmt::format("{} of {} file{}, '{}'{}", what_, files_.size(), files_.size() == 1 ? "" : "s", files_.front(),
                       files_.size() == 1 ? "" : " and so on");
  }

 private:
  virtual std::unique_ptr<RecordReader> open_file(const std::string& path, const RecordPlace& at) const = 0;

  const char* const what_;
  const std::vector<std::string> files_;
};

class FormatFiles final : public FilesOfRecords {
 public:
  FormatFiles(const char* what, const std::vector<std::string>& paths, const RecordOptions& options, MakeReader make,
              internal::IsPlain is_plain)
      : FilesOfRecords(what, paths, options), max_bytes_(options.max_bytes), make_(make), is_plain_(is_plain) {
    if (options.window == 1 && !options.fields) return;
    throw UsageError("LS-OPTION", fmt::format("{} were asked for with .window or .fields", what),
                     "leave them out: they are of tar_samples");
  }

 private:
  std::unique_ptr<RecordReader> open_file(const std::string& path, const RecordPlace& at) const override {
    return make_(Input(path, at.offset, is_plain_), at, max_bytes_);
  }

  const int64_t max_bytes_;
  const MakeReader make_;
  const internal::IsPlain is_plain_;
};

class TarFiles final : public FilesOfRecords {
 public:
  TarFiles(const std::vector<std::string>& paths, const RecordOptions& options)
      : FilesOfRecords("the tar samples", paths, options),
        given_{.max_bytes = options.max_bytes, .window = options.window, .fields = options.fields} {
    if (options.window < 1) {
      throw UsageError("LS-OPTION", fmt::format("the tar samples were asked for with a .window of {}", options.window),
                       "give at least 1");
    }
    for (const std::string& field : options.fields.value_or(std::vector<std::string>())) {
      const bool is_lower = std::none_of(field.begin(), field.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
      if (is_lower && !field.empty()) continue;
      throw UsageError("LS-OPTION", fmt::format("the tar samples were asked for with '{}' in .fields", field),
                       "give the names of fields in lower case, like \"jpg\"");
    }
  }

 private:
  std::unique_ptr<RecordReader> open_file(const std::string& path, const RecordPlace& at) const override {
    std::call_once(looked_, [this] { rules_ = with_fields(); });
    return internal::make_tar_reader(Input(path), at, rules_);
  }

  /// The fields of the first samples, where none were given. What is damaged is said where it is read.
  internal::TarRules with_fields() const {
    internal::TarRules rules = given_;
    for (std::size_t i = 0; i < files().size() && !rules.fields; ++i) {
      rules.fields = internal::fields_of_first_samples(files()[i], given_);
      rules.like = files()[i];
      rules.no_others = true;
    }
    return rules;
  }

  const internal::TarRules given_;
  mutable std::once_flag looked_;
  mutable internal::TarRules rules_;  // written once
};

}  // namespace

std::shared_ptr<const RecordFiles> lines(const std::vector<std::string>& paths, const RecordOptions& options) {
  return std::make_shared<FormatFiles>("the lines", paths, options, &internal::make_line_reader, nullptr);
}

std::shared_ptr<const RecordFiles> tf_records(const std::vector<std::string>& paths, const RecordOptions& options) {
  return std::make_shared<FormatFiles>("the TFRecords", paths, options, &internal::make_tf_record_reader,
                                       &internal::is_tf_record);
}

std::shared_ptr<const RecordFiles> tar_samples(const std::vector<std::string>& paths, const RecordOptions& options) {
  return std::make_shared<TarFiles>(paths, options);
}

}  // namespace lockstep::data
