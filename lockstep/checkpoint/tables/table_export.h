// Rows of tables from a checkpoint into a plain file, in bounded memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/checkpoint/formats/tensor_file.h"
#include "lockstep/checkpoint/image.h"

namespace lockstep::internal::inline checkpoint {

/// Writes a safetensors file of `tensors` and of tensors of the checkpoint, which are copied a piece at a time: `rows`
/// has the place of each in the manifest, by its name in the file. The contract is that of save_tensors(), and a
/// DataError where a piece does not have its checksum.
void save_with_rows(const std::filesystem::path& file, const NamedTensors& tensors, const CheckpointReader& reader,
                    const std::map<std::string, std::size_t>& rows);

}  // namespace lockstep::internal::checkpoint
