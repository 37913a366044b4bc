#include "tools/models/models.h"

#include <torch/nn/functional/loss.h>

#include "lockstep/core/error.h"
#include "tools/models/image_models.h"

namespace lockstep::tools {

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"mlp", "cnn"};
  return names;
}

std::shared_ptr<Classifier> make_model(const ModelOptions& options) {
  if (options.name == "mlp") {
    if (options.widths.size() < 2) {
      throw UsageError("--widths has less than two numbers",
                       "give the width of the input, of each hidden layer, and the classes");
    }
    return std::make_shared<Mlp>(options.widths, options.dropout);
  }
  return std::make_shared<Cnn>(options.dropout);
}

torch::Tensor mean_loss(Classifier& model, const torch::Tensor& input, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(model.forward(input), target.flatten());
}

}  // namespace lockstep::tools
