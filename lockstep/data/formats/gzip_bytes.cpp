#include "lockstep/data/formats/gzip_bytes.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline data {

namespace {

constexpr std::size_t kPacked = 1 << 16;
constexpr std::size_t kMostAtOnce = 1 << 20;
constexpr int kGzipOnly = 15 + 16;  // zlib's largest window, and a gzip header before it
constexpr const char* kGetAgain = "get the file again";

class GzipContents final : public ByteSource {
 public:
  GzipContents(std::string name, std::unique_ptr<ByteSource> packed)
      : name_(std::move(name)), packed_(std::move(packed)), buffer_(kPacked, '\0') {
    if (::inflateInit2(&state_, kGzipOnly) != Z_OK) out_of_memory();
  }
  ~GzipContents() override { ::inflateEnd(&state_); }
  GzipContents(const GzipContents&) = delete;
  GzipContents& operator=(const GzipContents&) = delete;

  std::size_t read(char* to, std::size_t count) override {
    while (count > 0 && (in_member_ || begin_member())) {
      if (is_damaged_) damaged();
      const bool is_more = has_packed();  // where there is none, zlib may still have contents to give
      const auto room = static_cast<uInt>(std::min(count, kMostAtOnce));
      state_.next_out = reinterpret_cast<Bytef*>(to);
      state_.avail_out = room;
      const int code = ::inflate(&state_, Z_NO_FLUSH);
      const std::size_t got = room - state_.avail_out;
      given_ += static_cast<int64_t>(got);
      if (code == Z_STREAM_END) in_member_ = false;
      is_damaged_ = code == Z_DATA_ERROR || code == Z_NEED_DICT || code == Z_STREAM_ERROR;
      if (got > 0) return got;  // before what is wrong behind them
      if (code == Z_MEM_ERROR) out_of_memory();
      if (in_member_ && !is_damaged_ && !is_more) cut_off();
    }
    return 0;
  }

  uint64_t skip(uint64_t count) override {
    std::string piece(static_cast<std::size_t>(std::min<uint64_t>(count, kMostAtOnce)), '\0');
    uint64_t done = 0;
    while (done < count) {
      const std::size_t got =
          read(piece.data(), static_cast<std::size_t>(std::min<uint64_t>(count - done, piece.size())));
      if (got == 0) break;
      done += got;
    }
    return done;
  }

 private:
  /// Whether there are bytes that zlib has not taken; reads them where it has taken all.
  bool has_packed() {
    if (state_.avail_in > 0) return true;
    const std::size_t got = packed_->read(buffer_.data(), buffer_.size());
    taken_ += static_cast<int64_t>(got);
    state_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    state_.avail_in = static_cast<uInt>(got);
    return got > 0;
  }

  /// Of the file's byte that zlib takes next.
  int64_t offset() const { return taken_ - static_cast<int64_t>(state_.avail_in); }

  /// Goes to the next member, or to the end of the file.
  bool begin_member() {
    while (members_ > 0 && has_packed() && *state_.next_in == 0) {
      ++state_.next_in;
      --state_.avail_in;
    }
    // An empty file is no gzip file: whoever opens one as that knows so by its name.
    if (!has_packed() && members_ > 0) return false;
    if (members_ > 0 && *state_.next_in != 0x1f) nothing_known();
    begin_ = offset();
    begin_given_ = given_;
    ::inflateReset(&state_);
    in_member_ = true;
    ++members_;
    return true;
  }

  [[noreturn]] void out_of_memory() const {
    throw DataError("LS-FILE-LIMIT", fmt::format("'{}' cannot be decompressed: there is no memory for it", name_),
                    kMoreMemory);
  }
  [[noreturn]] void cut_off() const {
    throw InputError(fmt::format("'{}' is cut off at its byte {}, in the gzip member that begins at byte {}; {} bytes "
                                 "of contents could be read",
                                 name_, offset(), begin_, given_),
                     kGetAgain);
  }
  [[noreturn]] void damaged() const {
    const std::string what = state_.msg != nullptr ? state_.msg : "it needs a dictionary";
    // zlib knows a member by two bytes, and says this of all that begins otherwise.
    if (what == "incorrect header check" && given_ == begin_given_ && members_ > 1) nothing_known();
    throw InputError(fmt::format("'{}' is damaged at its byte {}, in the gzip member that begins at byte {}: {}. What "
                                 "this member gave, from byte {} to byte {} of the contents, may be wrong",
                                 name_, offset(), begin_, what, begin_given_, given_),
                     kGetAgain);
  }
  [[noreturn]] void nothing_known() const {
    throw InputError(fmt::format("'{}' goes on behind a gzip member with something else: at its byte {} no member "
                                 "begins; {} bytes of contents came before",
                                 name_, members_ > 0 && in_member_ ? begin_ : offset(), given_),
                     "get the file again; what is no part of it must be cut off");
  }

  const std::string name_;
  const std::unique_ptr<ByteSource> packed_;
  std::string buffer_;
  z_stream state_ = {};
  int64_t taken_ = 0;        // bytes of the file that were read
  int64_t given_ = 0;        // bytes of the contents
  int64_t begin_ = 0;        // of the member, in the file
  int64_t begin_given_ = 0;  // and in the contents
  int64_t members_ = 0;      // that have begun
  bool in_member_ = false;
  bool is_damaged_ = false;  // the member is, behind what was given
};

}  // namespace

std::unique_ptr<ByteSource> gzip_contents(std::string name, std::unique_ptr<ByteSource> packed) {
  return std::make_unique<GzipContents>(std::move(name), std::move(packed));
}

}  // namespace lockstep::internal::data
