// Named tensors in files of other programs: safetensors, which any Python reads and writes, and the files of
// torch.save.
#pragma once

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// Gives a tensor's name in the program for its name in a file; an empty one leaves the tensor out.
using Rename = std::function<std::string(const std::string&)>;

/// Reads a safetensors file, or what Python's torch.save wrote (a zip file, the default since PyTorch 1.6; an older
/// file is a DataError, LS-CHECKPOINT-VERSION): a dictionary, a list or a tuple of tensors, which may have anything
/// beside them. Nothing of the pickle in such a file is ever run. A tensor in a nested dictionary, a list or a tuple
/// has all keys and numbers in its name: "layers.0.weight". Objects of classes are not looked into; a warning names
/// those with tensors in them. Sizes are compared with the file before memory is asked for. A tensor that is left out
/// by its name is not read, and may be of any kind; another one that is not dense, or of a dtype that this version of
/// LibTorch does not have, is a DataError (LS-CHECKPOINT-DAMAGED) that names it and its type. A UsageError (LS-NAME)
/// where two tensors get one name.
///
///     model.load(lockstep::load_tensors("model.pt"));
std::map<std::string, at::Tensor> load_tensors(const std::filesystem::path& file, const Rename& rename = {});

/// Reads the state of an optimizer of PyTorch, as Optimizer::load takes it: a file of torch::save(optimizer, file) of
/// C++, or Python's optimizer.state_dict(); where that stands in a dictionary, `key` says under which key. Its
/// parameters are the variables of `optimizer`, in its groups and in their order. A parameter that had no gradient yet
/// gets slots of zeros. A UsageError (LS-STATE-MISFIT) where parameters, groups or slots are others, and the DataErrors
/// of load_tensors(). A call of all workers, each of which reads the file. Outside of steps.
///
///     optimizer.load(lockstep::load_optimizer_state("adam.pt", optimizer));
std::map<std::string, at::Tensor> load_optimizer_state(const std::filesystem::path& file, const Optimizer& optimizer,
                                                       const std::string& key = "");

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
