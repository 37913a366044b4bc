// One file that is written anew: it has its old content until it has all of the new one.
#pragma once

#include <filesystem>
#include <string_view>

#include "lockstep/core/function_ref.h"

namespace lockstep::internal::inline checkpoint {

class NewFile;

// Each throws a DataError (LS-FILE) that names the path and the reason. A link stays, and its target is replaced. What
// is no plain file is refused: renaming would put a file in the place of a device or a pipe.

/// Lets `write` fill a file beside this one, and renames it. Where anything fails, nothing has changed. Gives the file
/// that was replaced, or made. Other threads and processes may write the same file.
std::filesystem::path replace_file(const std::filesystem::path& file, FunctionRef<void(NewFile&)> write);
/// The same with a text.
std::filesystem::path replace_with_text(const std::filesystem::path& file, std::string_view text);
/// Makes the folder that the file is to be in, and finds out whether replace_file() can begin, before there is anything
/// to write.
void prepare_to_replace(const std::filesystem::path& file);

}  // namespace lockstep::internal::checkpoint
