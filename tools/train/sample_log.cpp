#include "tools/train/sample_log.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <sstream>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/process/file_descriptor.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The whole lines whose second number is below `step`.
std::string lines_before(const std::string& text, int64_t step) {
  std::string kept;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end + 1 - begin);
    begin = end + 1;
    int64_t epoch = 0;
    int64_t of_step = 0;
    if (std::istringstream(line) >> epoch >> of_step && of_step < step) kept += line;
  }
  return kept;
}

}  // namespace

SampleLog::SampleLog(std::string path, bool is_kept, bool goes_on) : path_(std::move(path)), is_kept_(is_kept) {
  if (path_.empty()) return;
  require_plain_file(path_);
  open(goes_on ? std::ios::app : std::ios::trunc);
}

SampleLog::~SampleLog() {
  if (!is_open_) return;
  stream_.close();
  if (!is_kept_) std::remove(part().c_str());
}

void SampleLog::open(std::ios::openmode mode) {
  stream_.open(part(), std::ios::binary | std::ios::out | mode);
  if (!stream_) fail();
  is_open_ = true;
}

void SampleLog::fail() const {
  const int error = errno;
  const ErrorCode code = internal::is_out_of_descriptors(error) ? ErrorCode("LS-FILE-LIMIT") : ErrorCode("LS-FILE");
  throw DataError(code, "'" + path_ + "' cannot be written: " + internal::text_of_open_error(error),
                  internal::is_out_of_descriptors(error)
                      ? internal::kMoreDescriptors
                      : "choose a folder that exists and is yours, with room on its disk");
}

void SampleLog::go_on_at(int64_t step) {
  if (!is_open_) return;
  stream_.close();
  std::string text = text_of(part());
  if (text.empty()) text = text_of(path_);
  const std::string anew = part() + ".new";
  std::ofstream out(anew, std::ios::binary | std::ios::trunc);
  out << lines_before(text, step);
  out.close();
  if (out.fail() || std::rename(anew.c_str(), part().c_str()) != 0) fail();
  open(std::ios::app);
}

void SampleLog::write(const std::string& lines) {
  if (is_open_) stream_ << lines;
}

void SampleLog::flush() {
  if (is_open_ && !stream_.flush()) fail();
}

void SampleLog::commit() {
  if (!is_open_) return;
  stream_.close();
  if (stream_.fail() || std::rename(part().c_str(), path_.c_str()) != 0) fail();
  is_open_ = false;
}

}  // namespace lockstep::tools
