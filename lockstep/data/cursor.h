// A place in the epochs of a distributed data set, as a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// A place in the epochs of a distributed data set. It is a few numbers, so that a program can save it in any format.
/// That of a data set holds for any number of replicas, lanes and workers, and for any global batch. That of a stream
/// holds for any number of lanes and workers; where replicas read files of their own (Sharding::kFile), for one number
/// of replicas.
struct Cursor {
  int64_t epoch = 0;
  int64_t position = 0;  // samples of this epoch that come before the place
  int64_t size = 0;      // samples in the data set, when the epoch began; of a stream, files
  uint64_t seed = 0;     // of the order of samples
  bool shuffle = false;  // whether that order is DistributeOptions::shuffle's
  uint64_t digest = 0;   // of the data: see Source::digest; of files, the sum of their digests; 0: not known
  /// The sum of the files' digests, each times its number from 1. With `digest` it names the one file that has changed.
  uint64_t digest_by_file = 0;
  std::vector<int64_t> stream = {};  // of a stream: where its stages are

  /// Digests that are not known are equal to any other.
  friend bool operator==(const Cursor& a, const Cursor& b) {
    const auto same = [](uint64_t x, uint64_t y) { return x == y || x == 0 || y == 0; };
    return a.epoch == b.epoch && a.position == b.position && a.size == b.size && a.seed == b.seed &&
           a.shuffle == b.shuffle && same(a.digest, b.digest) && same(a.digest_by_file, b.digest_by_file) &&
           a.stream == b.stream;
  }
};

/// The cursor as JSON, on one line.
std::string to_json(const Cursor& cursor);
/// The cursor that to_json() wrote. Throws a UsageError for any other text.
Cursor cursor_from_json(const std::string& text);

}  // namespace lockstep::data
