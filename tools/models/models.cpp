#include "tools/models/models.h"

#include <fmt/format.h>
#include <torch/nn/functional/loss.h>

#include "lockstep/core/error.h"
#include "tools/models/gpt.h"
#include "tools/models/image_models.h"
#include "tools/models/resnet.h"

namespace lockstep::tools {

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"mlp", "cnn", "resnet18", "gpt"};
  return names;
}

bool reads_text(const std::string& model) { return model == "gpt"; }

std::shared_ptr<Classifier> make_model(const ModelOptions& options) {
  if (options.name == "mlp") {
    if (options.widths.size() < 2) {
      throw UsageError("LS-FLAG", "--widths has less than two numbers",
                       "give the width of the input, of each hidden layer, and the classes");
    }
    return std::make_shared<Mlp>(options.widths, options.dropout);
  }
  if (options.name == "cnn") return std::make_shared<Cnn>(options.dropout);
  if (options.name == "resnet18") return std::make_shared<Resnet18>(options.dropout);
  if (options.name == "gpt") {
    if (options.width % options.heads != 0) {
      throw UsageError("LS-FLAG", fmt::format("--width {} is no multiple of --heads {}", options.width, options.heads),
                       "each head takes an equal part of the width");
    }
    return std::make_shared<Gpt>(options);
  }
  throw UsageError("LS-FLAG", fmt::format("there is no model '{}'", options.name), "use mlp, cnn, resnet18 or gpt");
}

torch::Tensor mean_loss(Classifier& model, const torch::Tensor& input, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(model.forward(input), target.flatten());
}

}  // namespace lockstep::tools
