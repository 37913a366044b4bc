// What is compressed in a file of gzip members.
#pragma once

#include <memory>
#include <string>

#include "lockstep/data/formats/input.h"

namespace lockstep::internal::inline data {

/// The contents of all members of `packed`, one behind the other; messages call it `name`. Zeros behind a member fill
/// up a block of a tape or a pipe, and are passed over. read() throws an InputError where a member is damaged or cut
/// off, and where something else than a member or zeros lies behind one; before that it has given all that came before.
/// Whether what a member gave is right, only its end says, which has its checksum.
std::unique_ptr<ByteSource> gzip_contents(std::string name, std::unique_ptr<ByteSource> packed);

}  // namespace lockstep::internal::data
