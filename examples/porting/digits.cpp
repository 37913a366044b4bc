// A LibTorch loop, ported: images through torch::data's DataLoader, clipping, and a model and an optimizer that are
// saved and loaded.
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

// The data set and the network are LibTorch's own and stay as they were.
class Digits : public torch::data::datasets::Dataset<Digits> {
 public:
  explicit Digits(const lockstep::Batch& all) : images_(all.input), labels_(all.target) {}
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {images_[i], labels_[i]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(images_.size(0)); }

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("hidden", hidden);
    register_module("out", out);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(hidden(x.flatten(1)));
    return torch::log_softmax(out(x), 1);
  }
  torch::nn::Linear hidden{784, 64};
  torch::nn::Linear out{64, 10};
};
TORCH_MODULE(Net);

// The share of the images that a network in a program without a strategy gets right.
double accuracy(Net net, const lockstep::Batch& images) {
  const torch::NoGradGuard no_grad;
  return net->forward(images.input).argmax(1).eq(images.target).to(torch::kDouble).mean().item<double>();
}

std::vector<torch::Tensor> values_of(const std::map<std::string, torch::Tensor>& named) {
  std::vector<torch::Tensor> values;
  for (const auto& [name, value] : named) values.push_back(value);
  return values;
}

int main() {
  const lockstep::data::Split digits = lockstep::data::digits(4000, 500);
  const lockstep::Batch test = digits.evaluate.read_all();
  const std::string folder =
      std::filesystem::temp_directory_path() / ("lockstep-porting-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);

  // [main]
  torch::manual_seed(7);  // of the DataLoader's order
  lockstep::MirroredStrategy strategy({.replicas = 4, .seed = 7});
  auto model = strategy.make_module([] { return Net(); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05).momentum(0.9));
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Digits(digits.train.read_all()).map(torch::data::transforms::Stack<>()), 64);

  for (int epoch = 0; epoch < 4; ++epoch) {
    for (const auto& batch : *loader) {
      strategy.run(strategy.split(batch.data, batch.target),
                   [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& part) {
                     auto loss = torch::nll_loss(model(ctx)->forward(part.input), part.target);
                     ctx.scale_loss(loss).backward();
                     optimizer.step(ctx, {.clip_global_norm = 1.0});
                   });
    }
  }
  // [main]

  // [save]
  torch::save(model.export_module(), folder + "/model.pt");  // a Net, as without Lockstep
  torch::save(values_of(optimizer.state()),
              folder + "/optimizer.pt");  // slots and step counts, in order of their names
  // [save]

  // [load]
  Net net;  // in a program without a strategy
  torch::load(net, folder + "/model.pt");
  // [load]
  std::cout << "saved and loaded, the network reads " << (accuracy(net, test) > 0.8 ? "most" : "few") << " digits\n";

  // [resume]
  lockstep::MirroredStrategy resumed({.replicas = 4, .seed = 7});
  auto same_model = resumed.make_module([] { return Net(); });
  auto same_optimizer = resumed.make_optimizer(same_model, torch::optim::SGDOptions(0.05).momentum(0.9));
  std::map<std::string, torch::Tensor> values;
  for (const auto& item : net->named_parameters()) values[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) values[item.key()] = item.value();
  same_model.load(values);
  std::vector<torch::Tensor> slots;
  torch::load(slots, folder + "/optimizer.pt");
  auto state = same_optimizer.state();  // for the names
  auto slot = slots.begin();
  for (auto& [name, value] : state) value = *slot++;
  same_optimizer.load(state);
  // [resume]
  std::filesystem::remove_all(folder);

  bool equal = true;
  for (const auto& [name, value] : model.state()) equal = equal && torch::equal(value, same_model.state().at(name));
  for (const auto& [name, value] : optimizer.state())
    equal = equal && torch::equal(value, same_optimizer.state().at(name));
  std::cout << "a strategy that loads both has " << (equal ? "the same bits" : "other bits") << "\n";
  return equal ? 0 : 1;
}
