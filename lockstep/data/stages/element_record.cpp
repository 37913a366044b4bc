#include "lockstep/data/stages/element_record.h"

#include <ATen/ATen.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "lockstep/core/bytes.h"
#include "lockstep/data/sources/sample_bytes.h"

namespace lockstep::internal::inline data {

namespace {

constexpr uint64_t kNoIds = std::numeric_limits<uint64_t>::max();

bool can_be_kept(const at::Tensor& tensor) {
  return !tensor.defined() || (tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized());
}

/// Writes the head, for which room was left, of a record whose bytes are there.
void put_head(std::string& record, uint64_t number) {
  const std::string_view bytes = std::string_view(record).substr(sizeof(RecordHead));
  const RecordHead head{number, bytes.size(), XXH3_64bits_withSeed(bytes.data(), bytes.size(), number)};
  std::memcpy(record.data(), &head, sizeof head);
}

std::optional<Batch> element_of(std::string_view bytes) {
  ByteReader reader(bytes);
  uint64_t rows = 0;
  if (!reader.get(rows)) return std::nullopt;
  at::Tensor ids;
  if (rows != kNoIds) {
    std::string_view numbers;
    if (rows > bytes.size() || !reader.get_bytes(rows * sizeof(int64_t), numbers)) return std::nullopt;
    ids = at::empty({static_cast<int64_t>(rows)}, at::kLong);
    if (rows > 0) std::memcpy(ids.data_ptr(), numbers.data(), numbers.size());
  }
  std::optional<Batch> element = sample_of(reader.left());
  if (element) element->ids = std::move(ids);
  return element;
}

}  // namespace

bool can_be_kept(const Batch& element) {
  const auto& more = element.more;
  return element.input.defined() && can_be_kept(element.input) && can_be_kept(element.target) &&
         can_be_kept(element.ids) &&
         std::all_of(more.begin(), more.end(), [](const auto& one) { return can_be_kept(one.second); });
}

std::string record_of(uint64_t number, std::string_view bytes) {
  std::string record(sizeof(RecordHead), '\0');
  record += bytes;
  put_head(record, number);
  return record;
}

/// The ids, then the tensors.
std::string record_of(uint64_t number, const Batch& element) {
  std::string record(sizeof(RecordHead), '\0');
  if (element.ids.defined()) {
    const at::Tensor ids = element.ids.to(at::kLong).contiguous();
    ByteWriter(record).put(static_cast<uint64_t>(ids.numel()));
    record.append(static_cast<const char*>(ids.data_ptr()), ids.nbytes());
  } else {
    ByteWriter(record).put(kNoIds);
  }
  record += bytes_of(element);
  put_head(record, number);
  return record;
}

std::optional<std::string> bytes_at(int file, int64_t place, int64_t end, uint64_t number) {
  RecordHead head;
  if (place < 0 || place > end - kRecordHeadSize || !read_at(file, &head, sizeof head, place)) return {};
  const int64_t begin = place + kRecordHeadSize;
  if (head.number != number || head.length > static_cast<uint64_t>(end - begin)) return {};
  std::string bytes(head.length, '\0');
  const bool is_whole = read_at(file, bytes.data(), bytes.size(), begin) &&
                        XXH3_64bits_withSeed(bytes.data(), bytes.size(), number) == head.checksum;
  if (!is_whole) return {};
  return bytes;
}

std::optional<Batch> element_at(int file, int64_t place, int64_t end, int64_t i) {
  const auto bytes = bytes_at(file, place, end, static_cast<uint64_t>(i));
  return bytes ? element_of(*bytes) : std::nullopt;
}

bool read_at(int file, void* to, std::size_t count, int64_t offset) {
  auto* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = pread(file, next, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    offset += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_at(int file, std::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(file, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
    offset += put;
  }
  return true;
}

}  // namespace lockstep::internal::data
