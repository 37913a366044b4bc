// A file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace lockstep::internal::inline core {

/// Whether a call has failed because this process, or the system, has no file descriptor left: it says nothing of the
/// file.
inline bool is_out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }
/// What one can do about that.
inline constexpr const char* kMoreDescriptors = "raise the limit of open files (ulimit -n), or close some first";
/// The system's reason why a file was not opened.
inline std::string text_of_open_error(int error) {
  return std::string(is_out_of_descriptors(error) ? "no file descriptor is left: " : "") + std::strerror(error);
}

/// Closes its descriptor, if it has one, when it is destroyed or assigned to.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { close(); }

  /// -1 where it has none.
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close() {
    if (is_open()) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace lockstep::internal::core
