// Samples of tar archives in WebDataset's convention, and how a sample becomes one record: its key, then each field's
// name and bytes, each of them with its length before it in 8 bytes.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/cluster/named_text.h"
#include "lockstep/data/formats/records/readers.h"
#include "lockstep/data/formats/records/side_files.h"
#include "lockstep/data/formats/records/tar_archive.h"
#include "lockstep/data/sources/record_files.h"

namespace lockstep::internal::inline data {

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

/// Nothing for a file that belongs to no sample.
std::optional<Name> split(std::string_view name) {
  std::size_t base = 0;
  for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', base)) {
    if (is_beside_data(name.substr(base, slash - base))) return std::nullopt;
    base = slash + 1;
  }
  if (is_beside_data(name.substr(base))) return std::nullopt;
  const std::size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return std::nullopt;
  std::string field(name.substr(dot + 1));
  for (char& c : field) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return Name{name.substr(0, dot), std::move(field)};
}

/// A key as all its spellings have it: without "." as a folder, and with single slashes.
std::string plain_key(std::string_view key) {
  std::string plain(key.starts_with('/') ? "/" : "");
  while (!key.empty()) {
    const std::string_view part = key.substr(0, key.find('/'));
    key.remove_prefix(std::min(part.size() + 1, key.size()));
    if (part.empty() || part == ".") continue;
    if (!plain.empty() && !plain.ends_with('/')) plain += '/';
    plain += part;
  }
  return plain;
}

/// A sample whose files come.
struct Sample {
  std::string key = {};
  int64_t begin = 0;                           // of its first file
  uint64_t bytes = 0;                          // of its record
  std::string record = {};                     // empty where contents are not read, and of a sample that is wrong
  std::map<std::string, int64_t> fields = {};  // and where their files begin
  std::string wrong = {};                      // what is, and what to do about it
  std::string remedy = {};
};

class TarReader final : public ReaderBase {
 public:
  TarReader(Input input, const lockstep::data::RecordPlace& at, const TarRules& rules, bool reads_contents)
      : ReaderBase(std::move(input), at, rules.max_bytes), rules_(rules), at_(at), reads_contents_(reads_contents) {}

  /// The next sample; nothing at the end of the archive, or where it is damaged.
  std::optional<Sample> take() {
    while (true) {
      if (!pending_ && !has_ended_) advance();
      if (!pending_) break;
      const Name name = *split(pending_->name);
      std::string key = plain_key(name.key);
      const auto open = open_by_key_.find(key);
      if (open == open_by_key_.end() && static_cast<int64_t>(open_.size()) == rules_.window) break;
      Sample& sample = open == open_by_key_.end() ? begin_sample(std::move(key), name) : *open->second;
      read_file(sample, name);
    }
    if (open_.empty()) return std::nullopt;
    Sample sample = std::move(open_.front());
    open_by_key_.erase(plain_key(sample.key));
    open_.pop_front();
    if (sample.wrong.empty()) compare_fields(sample);
    return sample;
  }

 private:
  bool read(std::string& bytes) override {
    if (at_) go_to(*at_);
    at_.reset();
    std::optional<Sample> sample = take();
    if (!sample) {
      if (damage_) throw_damage();
      return false;
    }
    move_on(next_begin());
    if (!sample->wrong.empty()) throw_bad(sample->wrong, sample->remedy);
    bytes = std::move(sample->record);
    return true;
  }

  /// Reads what lies before a place: which samples were given, and, of a window, what of the others has come.
  void go_to(const lockstep::data::RecordPlace& at) {
    if (at.record == 0 && at.offset == 0) return;
    const bool reads_contents = std::exchange(reads_contents_, reads_contents_ && rules_.window > 1);
    bool is_there = true;
    for (int64_t record = 0; is_there && record < at.record; ++record) is_there = take().has_value();
    reads_contents_ = reads_contents;
    if (is_there && next_begin() == at.offset) return;
    throw RestOfFileError("LS-DATA-FILE",
                          fmt::format("'{}' has no record {} at byte {}", input_.name(), at.record, at.offset),
                          "the file or the options changed: get it again, or begin at its start");
  }

  /// Where the first file begins that take() did not use.
  int64_t next_begin() const {
    if (!open_.empty()) return open_.front().begin;
    return pending_ ? pending_->begin : end_;
  }

  [[noreturn]] void throw_damage() const {
    try {
      std::rethrow_exception(damage_);
    } catch (const TarDamage& damage) {
      throw_bad(damage.what());
    }
  }

  /// Goes to the next file that belongs to a sample, or to the end of the archive.
  void advance() {
    end_ = input_.offset();
    try {
      while ((pending_ = next_tar_member(input_))) {
        if (split(pending_->name)) return;
        skip_tar_contents(input_, *pending_, pending_->size);
        end_ = input_.offset();
      }
      has_ended_ = true;
    } catch (const TarDamage&) {
      end_here(nullptr);
    } catch (const InputError&) {
      end_here(nullptr);
    }
  }

  Sample& begin_sample(std::string key, const Name& name) {
    Sample& sample = open_.emplace_back(Sample{.key = std::string(name.key), .begin = pending_->begin});
    append_part(sample.record, name.key);
    sample.bytes = sample.record.size();
    const auto [given, is_new] = begins_.try_emplace(key, pending_->begin);
    open_by_key_.emplace(std::move(key), std::prev(open_.end()));
    if (is_new) return sample;
    sample.wrong =
        fmt::format("the file {} at byte {} is of the sample {}, which began at byte {} and was given before",
                    in_quotes(pending_->name), pending_->begin, in_quotes(name.key), given->second);
    sample.remedy = rules_.window == 1 ? "put the files of a sample side by side, or give .window, the number of "
                                         "samples whose files are mixed"
                                       : "put the files of a sample closer together, or give a larger .window";
    return sample;
  }

  /// Takes the file that is pending.
  void read_file(Sample& sample, const Name& name) {
    const auto [first, is_new] = sample.fields.try_emplace(name.field, pending_->begin);
    sample.bytes += 16 + name.field.size();
    const uint64_t room = max_bytes_ - std::min(max_bytes_, sample.bytes);
    sample.bytes += pending_->size;
    if (sample.wrong.empty() && !is_new) {
      sample.wrong = fmt::format("the sample {} has two fields {}, at byte {} and at byte {}", in_quotes(sample.key),
                                 in_quotes(name.field), first->second, pending_->begin);
      sample.remedy = "take one of them out of the archive, or skip the records that cannot be read";
    } else if (sample.wrong.empty() && pending_->size > room) {
      sample.wrong = fmt::format("the sample {} is above the limit of {} bytes", in_quotes(sample.key), max_bytes_);
      sample.remedy = "give a larger .max_bytes, or skip the records that cannot be read";
    }
    const bool is_used = sample.wrong.empty() && reads_contents_;
    if (!is_used) sample.record = std::string();
    try {
      uint64_t there = 0;
      if (is_used) {
        append_part(sample.record, name.field);
        append_length(sample.record, pending_->size);
        there = input_.append(sample.record, pending_->size);
      }
      skip_tar_contents(input_, *pending_, pending_->size - there);
    } catch (const TarDamage&) {
      end_here(&sample);
    } catch (const InputError&) {
      end_here(&sample);
    }
    pending_.reset();
  }

  /// Inside a handler of what is wrong with the archive, in the contents of `cut` where that is given. The samples that
  /// are known to be whole are still given; the one that was read last is lost with the rest, if it is not.
  void end_here(Sample* cut) {
    damage_ = std::current_exception();
    has_ended_ = true;
    if (cut != nullptr) {
      end_ = pending_->begin;
      cut->record = std::string();
      cut->wrong = fmt::format("the sample {} is cut off with its archive", in_quotes(cut->key));
      cut->remedy = "get the file again";
    }
    pending_.reset();
    if (open_.empty()) return;
    const Sample& last = open_.back();
    if (&last != cut && (!last.wrong.empty() || is_complete(last))) return;
    end_ = last.begin;
    open_by_key_.erase(plain_key(last.key));
    open_.pop_back();
  }

  /// Whether it has all that the others have, as far as that is known.
  bool is_complete(const Sample& sample) const {
    return rules_.fields && !rules_.fields->empty() && missing_in(sample) == nullptr;
  }
  const std::string* missing_in(const Sample& sample) const {
    for (const std::string& field : *rules_.fields) {
      if (!sample.fields.contains(field)) return &field;
    }
    return nullptr;
  }

  void compare_fields(Sample& sample) const {
    if (!rules_.fields) return;
    const std::string whose = rules_.no_others ? fmt::format("the first samples of '{}'", rules_.like) : ".fields";
    if (const std::string* const missing = missing_in(sample)) {
      sample.wrong =
          fmt::format("the sample {}, which begins at byte {}, has no field {}, and {} {} it", in_quotes(sample.key),
                      sample.begin, in_quotes(*missing), whose, rules_.no_others ? "have" : "names");
    }
    for (const auto& [field, begin] : sample.fields) {
      const auto& known = *rules_.fields;
      const bool is_known = !rules_.no_others || std::find(known.begin(), known.end(), field) != known.end();
      if (!sample.wrong.empty() || is_known) continue;
      sample.wrong = fmt::format("the sample {} has the field {} at byte {}, and {} do not have it",
                                 in_quotes(sample.key), in_quotes(field), begin, whose);
    }
    if (!sample.wrong.empty()) sample.remedy = "correct the archive, or name in .fields what each sample must have";
  }

  const TarRules rules_;
  std::optional<lockstep::data::RecordPlace> at_;  // where to go first
  bool reads_contents_;
  std::optional<TarMember> pending_;  // its contents are read next; it belongs to a sample
  bool has_ended_ = false;
  std::exception_ptr damage_;  // thrown when all that is whole was given
  int64_t end_ = 0;            // behind the files that belong to samples
  std::list<Sample> open_;     // whose files may still come, by their beginnings
  std::unordered_map<std::string, std::list<Sample>::iterator> open_by_key_;
  std::unordered_map<std::string, int64_t> begins_;  // of all samples so far: a file may come for any of them
};

}  // namespace

std::unique_ptr<lockstep::data::RecordReader> make_tar_reader(Input input, const lockstep::data::RecordPlace& at,
                                                              const TarRules& rules) {
  return std::make_unique<TarReader>(std::move(input), at, rules, /*reads_contents=*/true);
}

std::optional<std::vector<std::string>> fields_of_first_samples(const std::string& path, TarRules rules) {
  constexpr int kSamples = 8;
  rules.fields.reset();
  std::set<std::string> all;
  try {
    TarReader reader(Input(path), {}, rules, /*reads_contents=*/false);
    for (int samples = 0; samples < kSamples;) {
      const std::optional<Sample> sample = reader.take();
      if (!sample) break;
      if (!sample->wrong.empty()) continue;
      for (const auto& [field, begin] : sample->fields) all.insert(field);
      ++samples;
    }
  } catch (const DataError& error) {
    if (error.code() == "LS-FILE-LIMIT") throw;
  }
  if (all.empty()) return std::nullopt;
  return std::vector<std::string>(all.begin(), all.end());
}

}  // namespace lockstep::internal::data

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
