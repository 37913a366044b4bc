// A tar archive, file by file: ustar, GNU's and pax' long names and large sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "lockstep/data/formats/input.h"

namespace lockstep::internal::inline data {

/// A plain file of an archive.
struct TarMember {
  int64_t begin = 0;  // where its first header begins, that of a long name included
  std::string name = {};
  uint64_t size = 0;
};

/// What is wrong with an archive; who reads it says which file and which record.
class TarDamage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The next plain file of an archive; its contents follow in `input`. Passes over folders, links and what archivers
/// add. Nothing at the end of the archive, which must have its mark, and nothing but zeros behind it. Throws a
/// TarDamage.
std::optional<TarMember> next_tar_member(Input& input);

/// Moves behind a file's contents, of which `left` bytes have not been read, and what fills its last block.
void skip_tar_contents(Input& input, const TarMember& member, uint64_t left);

}  // namespace lockstep::internal::data
