// A record of an ElementFile: a number, and bytes that are an element.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/data/batch.h"

namespace lockstep::internal::inline data {

struct RecordHead {
  uint64_t number = 0;
  uint64_t length = 0;
  uint64_t checksum = 0;  // of the bytes and the number
};

constexpr auto kRecordHeadSize = static_cast<int64_t>(sizeof(RecordHead));

/// Whether all tensors have plain elements in the host's memory.
bool can_be_kept(const Batch& element);

std::string record_of(uint64_t number, const Batch& element);
std::string record_of(uint64_t number, std::string_view bytes);

/// The bytes of the record at a place, which lies before `end`; nothing where it is not whole, or has another number.
/// No number in the file decides an allocation beyond `end`.
std::optional<std::string> bytes_at(int file, int64_t place, int64_t end, uint64_t number);
std::optional<Batch> element_at(int file, int64_t place, int64_t end, int64_t i);

/// False where there are fewer bytes, or the system refuses.
bool read_at(int file, void* to, std::size_t count, int64_t offset);
/// False, with errno set, where the system does not take all bytes.
bool write_at(int file, std::string_view bytes, int64_t offset);

}  // namespace lockstep::internal::data
