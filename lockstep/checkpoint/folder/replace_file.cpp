#include "lockstep/checkpoint/folder/replace_file.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline checkpoint {

namespace fs = std::filesystem;

namespace {

/// The file that gets the new content: a link's target, so that the link stays. Renaming would also replace a device or
/// a pipe, so these are refused.
fs::path file_to_replace(const fs::path& file) {
  if (file.empty()) throw DataError("LS-FILE", "a file to write has no name", "give its path");
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw DataError("LS-FILE", fmt::format("'{}' is not a file that can be replaced", file.string()),
                    "give the path of a plain file, or of a new one");
  }
  if (!fs::is_symlink(fs::symlink_status(file, error))) return file;
  const fs::path target = fs::weakly_canonical(file, error);
  if (error || fs::is_symlink(fs::symlink_status(target, error))) {
    throw DataError("LS-FILE", fmt::format("the link '{}' cannot be followed", file.string()),
                    "give the path of a plain file, or of a new one");
  }
  return target;
}

struct Unfinished {
  fs::path name;
  std::unique_ptr<NewFile> file;
};

/// A file beside the other one, under a name that nobody has. Other threads and processes may save at the same time.
Unfinished make_beside(const fs::path& file, Files& files) {
  bool has_failed = false;  // under this name
  for (int64_t number = 0;;) {
    const fs::path name = file.string() + (number == 0 ? ".part" : fmt::format(".{}.part", number));
    if (files.has(name)) {
      ++number;
      has_failed = false;
      continue;
    }
    try {
      return {name, files.create(name)};
    } catch (const DataError&) {
      // Another one may have made it and renamed it since.
      if (has_failed && !files.has(name)) throw;
      has_failed = true;
    }
  }
}

/// Removes what an error has left.
void remove_part(const fs::path& part, Files& files) noexcept {
  try {
    if (files.has(part)) files.remove_file(part);
  } catch (const DataError&) {  // the first error is the one to tell
  }
}

}  // namespace

fs::path replace_file(const fs::path& file, FunctionRef<void(NewFile&)> write) {
  Files& files = host_files();
  fs::path target = file_to_replace(file);
  const auto [part, unfinished] = make_beside(target, files);
  try {
    write(*unfinished);
    files.rename(part, target);
  } catch (...) {
    remove_part(part, files);
    throw;
  }
  return target;
}

fs::path replace_with_text(const fs::path& file, std::string_view text) {
  return replace_file(file, [&](NewFile& unfinished) { unfinished.write(0, std::as_bytes(std::span(text))); });
}

void prepare_to_replace(const fs::path& file) {
  Files& files = host_files();
  if (file.has_parent_path()) files.make_folder(file.parent_path());
  const fs::path part = make_beside(file_to_replace(file), files).name;
  remove_part(part, files);
}

}  // namespace lockstep::internal::checkpoint
