// The data that `lockstep train` learns from, by the flag's name.
#pragma once

#include <string>

#include "lockstep/data/dataset.h"
#include "tools/models/models.h"

namespace lockstep::tools {

struct TrainData {
  Dataset train;
  Dataset evaluate;
  std::string vocabulary;  // of text: the byte of each class
};

/// Loads `digits`, `idx:DIR` or `text:FILE`, and sets the model's vocabulary where it reads text. A UsageError where
/// the name is none, or the model cannot learn from such data.
TrainData load_data(const std::string& name, ModelOptions& model);

}  // namespace lockstep::tools
