// State dictionaries in the zip files of torch.save and torch::save.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/formats/pickle.h"
#include "lockstep/checkpoint/formats/tensor_file.h"

namespace lockstep::internal::inline checkpoint {

/// The tensors of a file, by name, that `wants` accepts; the others are not read, and may be of any kind. Those of one
/// storage share its memory, as PyTorch's do. A DataError (LS-CHECKPOINT-DAMAGED) that begins with `what` for a file
/// that is not such a dictionary.
NamedTensors read_state_dict(const OpenFile& file, const std::string& what,
                             const std::function<bool(const std::string&)>& wants);

/// The numbers, truth values and texts in such a file, by name. The same DataErrors.
std::map<std::string, PickledValue> read_values(const OpenFile& file, const std::string& what);

/// Throws the UsageErrors of require_storable(), and one for a dtype that such files have no storage for.
void require_state_dict(const NamedTensors& tensors);

/// Writes a file that Python's torch.load reads as a dictionary of tensors, also with weights_only=True, and syncs it.
/// Each tensor gets a storage of its own. The UsageErrors of require_state_dict(); then nothing was written.
void write_state_dict(NewFile& file, const NamedTensors& tensors);

}  // namespace lockstep::internal::checkpoint
