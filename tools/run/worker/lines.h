// A worker's output as lines: cut out of a stream of bytes, and the last ones kept.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

/// Cuts bytes into lines. Any bytes are legal. It keeps at most kLongest bytes: a longer line comes in pieces.
class LineCutter {
 public:
  static constexpr std::size_t kLongest = 64 * 1024;
  /// Gets a whole line, or a piece of one, with its newline where it has one.
  using Receive = std::function<void(std::string_view piece)>;

  /// Calls `receive` for each line that `bytes` complete, in order.
  void add(std::string_view bytes, const Receive& receive);
  /// At the end of the stream: calls `receive` for a last line that has no newline.
  void finish(const Receive& receive);

 private:
  std::string begun_;
};

/// The last lines that were added, at most kLines of at most kLongest bytes each.
class LastLines {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLongest = 4096;

  /// `piece` is what a LineCutter gives; of a line in several pieces the last one stays.
  void add(std::string_view piece);
  /// Without newlines, the oldest first.
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
  bool inside_ = false;  // the last piece had no newline
};

}  // namespace lockstep::tools
