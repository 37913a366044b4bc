// A file that appears under its name only when it is whole.
#pragma once

#include <fstream>
#include <string>

namespace lockstep::tools {

/// Refuses a path at which something is that is no plain file: a folder, a device or a pipe. Renaming a file to that
/// name would replace a device for every program of the machine. A DataError (LS-FILE).
void require_plain_file(const std::string& path);

/// Collects text in "<path>.part"; commit() renames it. Without a commit nothing is left. An empty path: no file.
class WholeFile {
 public:
  /// A DataError where the file cannot be made.
  explicit WholeFile(std::string path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  bool wanted() const { return !path_.empty(); }
  void write(const std::string& text);
  /// A DataError where something could not be written.
  void commit();

 private:
  const std::string path_;
  std::ofstream stream_;
  bool open_ = false;
};

}  // namespace lockstep::tools
