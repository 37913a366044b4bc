// Names of what lies beside data without being data.
#pragma once

#include <string_view>

namespace lockstep::internal::inline data {

/// Whether a file or folder of this name, which has no slash, is none of a data set: hidden (".git", "._7.jpg",
/// ".nfs1"), left by file managers and archivers ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini", "thumbnails"), by
/// file systems ("lost+found"), by editors ("7.jpg~"), or a lock (".lock" at its end). "." and ".." are not.
bool is_beside_data(std::string_view name);

}  // namespace lockstep::internal::data
