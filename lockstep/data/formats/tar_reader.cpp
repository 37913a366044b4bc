// Samples of tar archives in WebDataset's convention, and how a sample becomes one record: its key, then each field's
// name and bytes, each of them with its length before it in 8 bytes.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/cluster/named_text.h"
#include "lockstep/data/formats/readers.h"
#include "lockstep/data/formats/tar_archive.h"
#include "lockstep/data/record_files.h"

namespace lockstep::internal {

namespace {

void append_length(std::string& record, uint64_t length) {
  for (int i = 0; i < 8; ++i) record += static_cast<char>(length >> (8 * i) & 0xff);
}

void append_part(std::string& record, std::string_view part) {
  append_length(record, part.size());
  record += part;
}

/// Takes the next part off the front.
std::string_view take_part(std::string_view& record) {
  uint64_t length = 0;
  bool fits = record.size() >= 8;
  for (std::size_t i = 0; fits && i < 8; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(record[i])) << (8 * i);
  }
  fits = fits && length <= record.size() - 8;
  if (!fits) {
    throw DataError("LS-DATA-RECORD", fmt::format("{} bytes are no record of tar_samples()", record.size()),
                    "give a record as its reader gave it");
  }
  const std::string_view part = record.substr(8, static_cast<std::size_t>(length));
  record.remove_prefix(8 + static_cast<std::size_t>(length));
  return part;
}

/// A file's name as the key of its sample and the name of its field.
struct Name {
  std::string_view key;
  std::string field;
};

std::optional<Name> split(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return std::nullopt;
  std::string field(name.substr(dot + 1));
  for (char& c : field) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return Name{name.substr(0, dot), std::move(field)};
}

class TarReader final : public ReaderBase {
 public:
  TarReader(Input input, const data::RecordPlace& at, int64_t max_bytes)
      : ReaderBase(std::move(input), at, max_bytes) {}

 private:
  bool read(std::string& bytes) override {
    try {
      if (!pending_ && !has_ended_) advance();
      if (!pending_) return false;
      const std::string key(split(pending_->name)->key);
      append_part(bytes, key);
      std::set<std::string> fields;
      std::string wrong;
      while (pending_) {
        const Name name = *split(pending_->name);
        if (name.key != key) break;
        if (wrong.empty() && !fields.insert(name.field).second) {
          wrong = fmt::format("the sample {} has two fields {}", in_quotes(key), in_quotes(name.field));
        }
        const uint64_t room = max_bytes_ - std::min<uint64_t>(max_bytes_, bytes.size() + 16 + name.field.size());
        if (wrong.empty() && pending_->size > room) {
          wrong = fmt::format("the sample {} is above the limit of {} bytes", in_quotes(key), max_bytes_);
        }
        read_contents(name.field, wrong.empty() ? &bytes : nullptr);
        advance();
      }
      move_on(pending_ ? pending_->begin : input_.offset());
      if (!wrong.empty()) throw_bad(wrong);
      return true;
    } catch (const TarDamage& damage) {
      throw_bad(damage.what());
    }
  }

  /// Goes to the next file that belongs to a sample, or to the end of the archive.
  void advance() {
    while ((pending_ = next_tar_member(input_))) {
      if (split(pending_->name)) return;
      skip_tar_contents(input_, *pending_, pending_->size);
    }
    has_ended_ = true;
  }

  /// Appends the field to `record`, or passes over it.
  void read_contents(const std::string& field, std::string* record) {
    uint64_t there = 0;
    if (record != nullptr) {
      append_part(*record, field);
      append_length(*record, pending_->size);
      there = input_.append(*record, pending_->size);
    }
    skip_tar_contents(input_, *pending_, pending_->size - there);
  }

  std::optional<TarMember> pending_;  // its contents are read next; it belongs to a sample
  bool has_ended_ = false;
};

}  // namespace

std::unique_ptr<data::RecordReader> make_tar_reader(Input input, const data::RecordPlace& at, int64_t max_bytes) {
  return std::make_unique<TarReader>(std::move(input), at, max_bytes);
}

}  // namespace lockstep::internal

namespace lockstep::data {

TarSample parse_tar_sample(std::string_view record) {
  TarSample sample;
  sample.key = internal::take_part(record);
  while (!record.empty()) {
    std::string name(internal::take_part(record));
    sample.fields.insert_or_assign(std::move(name), std::string(internal::take_part(record)));
  }
  return sample;
}

std::string make_tar_sample(const TarSample& sample) {
  std::string record;
  internal::append_part(record, sample.key);
  for (const auto& [name, bytes] : sample.fields) {
    internal::append_part(record, name);
    internal::append_part(record, bytes);
  }
  return record;
}

}  // namespace lockstep::data
