// State dictionaries in the zip files of torch.save and torch::save.
#pragma once

#include <string>

#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::internal {

/// The tensors of a file, by name. Those of one storage share its memory, as PyTorch's do. A DataError
/// (LS-CHECKPOINT-DAMAGED) that begins with `what` for a file that is not such a dictionary.
NamedTensors read_state_dict(const OpenFile& file, const std::string& what);

}  // namespace lockstep::internal
