// Lines of text as records.
#include <string_view>
#include <utility>

#include "lockstep/data/formats/records/readers.h"

namespace lockstep::internal::inline data {

namespace {

class LineReader final : public ReaderBase {
 public:
  LineReader(Input input, const lockstep::data::RecordPlace& at, int64_t max_bytes)
      : ReaderBase(std::move(input), at, max_bytes) {}

 private:
  bool read(std::string& bytes) override {
    uint64_t length = 0;
    bool ended = false;
    while (!ended) {
      const std::string_view there = input_.peek();
      if (there.empty()) break;
      const std::size_t newline = there.find('\n');
      ended = newline != std::string_view::npos;
      const std::string_view part = there.substr(0, newline);
      length += part.size();
      if (length <= max_bytes_) bytes += part;
      input_.skip(part.size() + (ended ? 1 : 0));
    }
    if (!ended && length == 0) return false;
    move_on(input_.offset());
    if (length > max_bytes_) throw_bad(fmt::format("a line of {} bytes, above the limit of {}", length, max_bytes_));
    if (bytes.ends_with('\r')) bytes.pop_back();
    return true;
  }
};

}  // namespace

std::unique_ptr<lockstep::data::RecordReader> make_line_reader(Input input, const lockstep::data::RecordPlace& at,
                                                               int64_t max_bytes) {
  return std::make_unique<LineReader>(std::move(input), at, max_bytes);
}

}  // namespace lockstep::internal::data
