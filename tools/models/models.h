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
  /// Floating-point operations of the matrix products and convolutions of one training step, forward and backward, for
  /// each sample: what the step takes at the least, whatever else it does.
  virtual double training_flops() const = 0;
};

struct ModelOptions {
  std::string name = "cnn";  // one of model_names()
  double dropout = 0;
  std::vector<int64_t> widths{784, 256, 256, 10};  // of the mlp: input, hidden layers, classes
  // Of the gpt:
  int64_t layers = 4;
  int64_t width = 256;
  int64_t heads = 8;        // divides the width
  int64_t context = 128;    // characters that it sees at once
  int64_t vocabulary = 65;  // different characters
};

/// The names that make_model knows.
const std::vector<std::string>& model_names();

/// Whether a model learns from text, int64 [n, context] in and out, and not from images.
bool reads_text(const std::string& model);

/// A fresh model. A UsageError where the options do not make one.
std::shared_ptr<Classifier> make_model(const ModelOptions& options);

/// The mean cross entropy of a model over one part of a batch.
torch::Tensor mean_loss(Classifier& model, const torch::Tensor& input, const torch::Tensor& target);

}  // namespace lockstep::tools
