#include "lockstep/train/tensor_board/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline train {

namespace {

constexpr std::string_view kBeforeSeconds = "tfevents.";

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw DataError("LS-FILE", fmt::format("'{}' cannot be written: {}", path.string(), reason),
                  "name a folder of yours on a disk with room");
}

/// This host's name with nothing but letters, digits and minus signs.
std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == 0) return "host";
  std::string text = name.data();
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return text;
}

/// The greatest number of seconds in the names of the folder's event files; 0 where there is none.
int64_t newest_seconds(const std::filesystem::path& folder) {
  int64_t newest = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::size_t found = name.find(kBeforeSeconds);
    if (found == std::string::npos) continue;
    int64_t seconds = 0;
    const char* const first = name.data() + found + kBeforeSeconds.size();
    if (std::from_chars(first, name.data() + name.size(), seconds).ec == std::errc()) {
      newest = std::max(newest, seconds);
    }
  }
  if (error) refuse(folder, error.message());
  return newest;
}

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

EventFile::EventFile(const std::filesystem::path& folder, int64_t first_step, std::function<double()> now)
    : now_(std::move(now)) {
  static std::atomic<int64_t> files_of_process{0};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) refuse(folder, error.message());
  // A host whose clock is behind must not name its file before those that are there.
  const int64_t seconds = std::max(static_cast<int64_t>(now_()), newest_seconds(folder) + 1);
  path_ = folder / fmt::format("events.out.{}{:010}.{}.{}.{}", kBeforeSeconds, seconds, host_name(), getpid(),
                               files_of_process++);
  file_ = FileDescriptor(::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
  if (!file_.is_open()) refuse(path_, text_of_open_error(errno));
  waiting_ = event_record(file_version_event(now_())) + event_record(start_event(first_step, now_()));
  flush();
}

EventFile::~EventFile() {
  try {
    flush();
  } catch (const DataError&) {
    // Whoever needs to know has called flush().
  }
}

void EventFile::append(const std::string& message) {
  waiting_ += event_record(message);
  const double age = now_() - written_at_;
  if (age >= 1 || age < 0) flush();  // a clock may be set back
}

void EventFile::flush() {
  written_at_ = now_();
  const std::string bytes = std::exchange(waiting_, {});
  for (std::size_t done = 0; done < bytes.size() && file_.is_open();) {
    const ssize_t written = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      const int reason = errno;
      file_.close();  // a record may be torn, and what follows one is not read
      refuse(path_, std::strerror(reason));
    }
  }
}

}  // namespace lockstep::internal::train
