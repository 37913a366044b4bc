// Writes TFRecord files of tf.train.Example, so that the example needs no data. Nothing of it is needed for reading.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

/// A tf.train.Example with the features "x", of floats, and "y", of one whole number, in protobuf's wire format.
inline std::string made_example(const std::vector<float>& x, uint8_t y) {
  const auto field = [](int number, const std::string& bytes) {  // all of them are shorter than 128 bytes
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
  };
  std::string floats(x.size() * sizeof(float), '\0');
  std::memcpy(floats.data(), x.data(), floats.size());
  const auto entry = [&](const std::string& name, const std::string& feature) {
    return field(1, field(1, name) + field(2, feature));
  };
  const std::string ints{static_cast<char>(1 << 3), static_cast<char>(y)};
  return field(1, entry("x", field(2, field(1, floats))) + entry("y", field(3, ints)));
}

/// TFRecord's frame: the length, the record, and a checksum of each (CRC-32C, turned and moved).
inline std::string framed(const std::string& record) {
  const auto checksum = [](const std::string& bytes) {
    uint32_t crc = ~0u;
    for (const char c : bytes) {
      crc ^= static_cast<unsigned char>(c);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    crc = (crc >> 15 | crc << 17) + 0xa282ead8u;
    return std::string(reinterpret_cast<const char*>(&crc), sizeof crc);
  };
  const uint64_t size = record.size();
  const std::string length(reinterpret_cast<const char*>(&size), sizeof size);
  return length + checksum(length) + record + checksum(record);
}
