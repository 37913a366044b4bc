// Reads event files for tests: whole records with right checksums, and of the messages what a test asks for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/formats/records/crc32c.h"
#include "tests/support/run_program.h"

namespace lockstep::testing {

/// The fields of a protobuf message by number: numbers and bits of reals as eight bytes, others as they are.
inline std::multimap<int, std::string> fields_of(std::string_view message) {
  std::multimap<int, std::string> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < message.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[at++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    std::string value;
    if ((key & 7) == 0) {
      const uint64_t number = varint();
      value.assign(reinterpret_cast<const char*>(&number), sizeof number);
    } else {
      const std::size_t size = (key & 7) == 2 ? varint() : (key & 7) == 1 ? 8 : 4;
      value = message.substr(at, size);
      at += size;
    }
    fields.emplace(static_cast<int>(key >> 3), value);
  }
  return fields;
}

inline int64_t integer_of(const std::string& bytes) {
  int64_t value = 0;
  std::memcpy(&value, bytes.data(), std::min(sizeof value, bytes.size()));
  return value;
}

struct ReadPoint {
  int64_t step = 0;
  float value = 0;
  bool operator==(const ReadPoint&) const = default;
};

/// What stands in one event file.
struct ReadEvents {
  int64_t start = -1;                                     // of SessionLog.START
  std::map<std::string, std::vector<ReadPoint>> scalars;  // by tag
  std::map<std::string, int64_t> others;                  // tags of other values, and how many
};

inline ReadEvents read_events(const std::filesystem::path& file) {
  const std::string bytes = text_of(file);
  ReadEvents events;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::string_view head = std::string_view(bytes).substr(at, 8);
    const auto size = static_cast<std::size_t>(integer_of(std::string(head)));
    const std::string_view message = std::string_view(bytes).substr(at + 12, size);
    uint32_t sums[2];
    std::memcpy(&sums[0], bytes.data() + at + 8, 4);
    std::memcpy(&sums[1], bytes.data() + at + 12 + size, 4);
    EXPECT_EQ(sums[0], internal::masked_crc32c(head));
    EXPECT_EQ(sums[1], internal::masked_crc32c(message));
    at += 16 + size;
    const auto event = fields_of(message);
    const int64_t step = event.count(2) ? integer_of(event.find(2)->second) : 0;
    if (event.count(7)) events.start = step;
    if (!event.count(5)) continue;
    for (const auto& [number, value] : fields_of(event.find(5)->second)) {
      const auto fields = fields_of(value);
      const std::string tag = fields.find(1)->second;
      const auto tensor = fields_of(fields.find(8)->second);
      if (tensor.count(5) == 0) {
        ++events.others[tag];
        continue;
      }
      ReadPoint point{step, 0};
      std::memcpy(&point.value, tensor.find(5)->second.data(), sizeof point.value);
      events.scalars[tag].push_back(point);
    }
  }
  return events;
}

/// Those of a folder, in the order of their files' names; none where there is no folder.
inline std::vector<ReadEvents> read_run(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<ReadEvents> all;
  for (const auto& file : files) all.push_back(read_events(file));
  return all;
}

}  // namespace lockstep::testing
