// Named tensors in files of other programs: safetensors, which any Python reads and writes, and the files of
// torch.save.
#pragma once

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace lockstep {

/// Gives a tensor's name in the program for its name in a file; an empty one leaves the tensor out.
using Rename = std::function<std::string(const std::string&)>;

/// Reads a safetensors file, or a state dictionary that Python's torch.save wrote (a zip file, the default since
/// PyTorch 1.6; an older file is a DataError, LS-CHECKPOINT-VERSION). Of the pickle in such a file only what builds a
/// dictionary of tensors is understood; everything else, and so every call of other code, is a DataError
/// (LS-CHECKPOINT-DAMAGED), and nothing is ever run. Sizes are compared with the file before memory is asked for. A
/// tensor in a nested dictionary, a list or a tuple has all keys and numbers in its name: "layers.0.weight". A
/// UsageError (LS-NAME) where two tensors get one name.
///
///     model.load(lockstep::load_tensors("model.pt"));
std::map<std::string, at::Tensor> load_tensors(const std::filesystem::path& file, const Rename& rename = {});

/// Writes a state dictionary as torch.save does where the name of `file` ends with ".pt" or ".pth", and a safetensors
/// file otherwise. The file appears under its name when it is whole and on the disk. A link stays, and the file that it
/// leads to is replaced. A DataError (LS-FILE) where that fails, or where the name is that of a folder, a device or a
/// pipe; then a file of before is unchanged. A UsageError (LS-DTYPE) where the file cannot have a tensor's dtype. A
/// safetensors file has a complex tensor as pairs of real numbers ([..., 2]); load_tensors() makes it complex again.
///
///     lockstep::save_tensors("model.safetensors", model.state());
///     lockstep::save_tensors("model.pt", model.state());  // Python: torch.load("model.pt", weights_only=True)
void save_tensors(const std::filesystem::path& file, const std::map<std::string, at::Tensor>& tensors);

}  // namespace lockstep
