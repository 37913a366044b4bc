// What each reader of records promises, whatever the bytes are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/formats/records/readers.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

/// Makes a reader of these bytes, at a place.
using MakeReader =
    std::function<std::unique_ptr<data::RecordReader>(const std::string& bytes, const data::RecordPlace&, int64_t)>;

/// Of a format whose readers are given the input at the place.
inline MakeReader at_place(std::unique_ptr<data::RecordReader> (*make)(internal::Input, const data::RecordPlace&,
                                                                       int64_t)) {
  return [make](const std::string& bytes, const data::RecordPlace& at, int64_t max_bytes) {
    return make(internal::Input("input", bytes, at.offset), at, max_bytes);
  };
}

/// A record, or none for a bad one.
struct Read {
  data::RecordPlace place;
  bool good = false;
  std::string bytes = {};
};

/// Reads `bytes` from a place to the end. Each call of next() gets further, and the reader ends.
inline std::vector<Read> read_from(const MakeReader& make, const std::string& bytes, const data::RecordPlace& at,
                                   int64_t max_bytes) {
  const auto reader = make(bytes, at, max_bytes);
  std::vector<Read> all;
  bool more = true;
  while (more) {
    Read one;
    one.good = is_value_or_data_error([&] { more = reader->next(one.bytes); });
    if (!more) break;
    one.place = reader->place();
    check(one.good || one.bytes.empty(), "a bad record has no bytes");
    if (!all.empty()) {
      check(one.place.record == all.back().place.record + 1, "records are counted");
      check(one.place.offset > all.back().place.offset, "a reader gets further");
    }
    all.push_back(one);
    check(all.size() <= bytes.size() + 1, "a reader ends");
  }
  std::string after;
  check(!reader->next(after), "a reader that has ended stays so");
  return all;
}

/// The same from the beginning; what is read from a record's place is what was read.
inline std::vector<Read> read_all(const MakeReader& make, const std::string& bytes, int64_t max_bytes) {
  std::vector<Read> all = read_from(make, bytes, {}, max_bytes);
  if (all.empty()) return all;
  const std::size_t middle = all.size() / 2;
  const std::vector<Read> later = read_from(make, bytes, all[middle].place, max_bytes);
  check(later.size() == all.size() - middle, "reading continues at a place");
  for (std::size_t i = 0; i < later.size(); ++i) {
    const Read& before = all[middle + i];
    check(
        later[i].bytes == before.bytes && later[i].good == before.good && later[i].place.offset == before.place.offset,
        "reading continues at a place");
  }
  return all;
}

}  // namespace lockstep::fuzz
