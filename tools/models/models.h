// The models that `lockstep train` and `lockstep bench` know.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::tools {

/// A model that chooses among classes.
class Classifier : public torch::nn::Module {
 public:
  /// Logits [rows, classes], a row for each element of the target.
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
};

struct ModelOptions {
  std::string name = "cnn";  // one of model_names()
  double dropout = 0;
  std::vector<int64_t> widths{784, 256, 256, 10};  // of the mlp: input, hidden layers, classes
};

/// The names that make_model knows.
const std::vector<std::string>& model_names();

/// A fresh model. A UsageError where the options do not make one.
std::shared_ptr<Classifier> make_model(const ModelOptions& options);

/// The mean cross entropy of a model over one part of a batch.
torch::Tensor mean_loss(Classifier& model, const torch::Tensor& input, const torch::Tensor& target);

}  // namespace lockstep::tools
