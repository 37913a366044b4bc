#include "tools/whole_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::tools {

void require_plain_file(const std::string& path) {
  std::error_code unknown;  // what cannot be looked at cannot be opened either
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  if (std::filesystem::is_directory(status)) {
    throw DataError("LS-FILE", "'" + path + "' cannot be written: it is a folder", "name a file in it");
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw DataError("LS-FILE", "'" + path + "' cannot be written: it is a device or a pipe",
                    "name a plain file, or a new one");
  }
}

WholeFile::WholeFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  require_plain_file(path_);
  stream_.open(path_ + ".part", std::ios::binary | std::ios::trunc);
  if (!stream_) {
    const int error = errno;
    const ErrorCode code = internal::is_out_of_descriptors(error) ? ErrorCode("LS-FILE-LIMIT") : ErrorCode("LS-FILE");
    throw DataError(code, "'" + path_ + "' cannot be written: " + internal::text_of_open_error(error),
                    internal::is_out_of_descriptors(error) ? internal::kMoreDescriptors
                                                           : "choose a folder that exists and is yours");
  }
  open_ = true;
}

WholeFile::~WholeFile() {
  if (!open_) return;
  stream_.close();
  std::remove((path_ + ".part").c_str());
}

void WholeFile::write(const std::string& text) {
  if (open_) stream_ << text;
}

void WholeFile::commit() {
  if (!open_) return;
  stream_.close();
  if (stream_.fail() || std::rename((path_ + ".part").c_str(), path_.c_str()) != 0) {
    throw DataError("LS-FILE", "'" + path_ + "' could not be written: " + std::strerror(errno),
                    "look for room on the disk");
  }
  open_ = false;
}

}  // namespace lockstep::tools
