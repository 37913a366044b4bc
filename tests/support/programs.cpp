#include "tests/support/programs.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <ostream>

namespace lockstep::testing {

namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using torch::Tensor;

class MlpProgram final : public Program {
 public:
  MlpProgram() {
    layers_->push_back(nn::Linear(24, 40));
    layers_->push_back(nn::ReLU());
    layers_->push_back(nn::Dropout(0.3));
    layers_->push_back(nn::Linear(40, 7));
    register_module("layers", layers_);
  }
  Tensor loss(const Tensor& input, const Tensor& target) override {
    return F::cross_entropy(layers_->forward(input), target);
  }

 private:
  nn::Sequential layers_;
};

class CnnProgram final : public Program {
 public:
  CnnProgram() {
    conv_ = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 6, 3).padding(1)));
    norm_ = register_module("norm", nn::BatchNorm2d(6));
    out_ = register_module("out", nn::Linear(6, 7));
  }
  Tensor loss(const Tensor& input, const Tensor& target) override {
    const Tensor x = torch::relu(norm_->forward(conv_->forward(input.view({-1, 2, 3, 4}))));
    return F::cross_entropy(out_->forward(x.mean({2, 3})), target);
  }

 private:
  nn::Conv2d conv_{nullptr};
  nn::BatchNorm2d norm_{nullptr};
  nn::Linear out_{nullptr};
};

class TwiceProgram final : public Program {
 public:
  TwiceProgram() {
    a_ = register_module("a", nn::Linear(24, 24));
    out_ = register_module("out", nn::Linear(24, 7));
    unused_ = register_module("unused", nn::Linear(3, 3));
  }
  Tensor loss(const Tensor& input, const Tensor& target) override {
    Tensor x = torch::tanh(a_->forward(input));
    x = torch::tanh(a_->forward(x)) + x * a_->weight.sum(0) * 0.01;
    return F::cross_entropy(out_->forward(x), target);
  }

 private:
  nn::Linear a_{nullptr};
  nn::Linear out_{nullptr};
  nn::Linear unused_{nullptr};
};

class EmbeddingProgram final : public Program {
 public:
  EmbeddingProgram() {
    tokens_ = register_module("tokens", nn::Embedding(7, 16));
    mix_ = register_module("mix", nn::Linear(16, 16));
    dropout_ = register_module("dropout", nn::Dropout(0.2));
    tied_ = register_parameter("tied", tokens_->weight);  // the same tensor under a second name
  }
  Tensor loss(const Tensor& input, const Tensor& target) override {
    const Tensor ids = input.abs().mul(3).to(torch::kLong).remainder(7);
    const Tensor x = dropout_->forward(torch::gelu(mix_->forward(tokens_->forward(ids).mean(1))));
    return F::cross_entropy(F::linear(x, tokens_->weight), target);
  }

 private:
  nn::Embedding tokens_{nullptr};
  nn::Linear mix_{nullptr};
  nn::Dropout dropout_{nullptr};
  Tensor tied_;
};

class DoubleProgram final : public Program {
 public:
  DoubleProgram() {
    a_ = register_module("a", nn::Linear(24, 30));
    b_ = register_module("b", nn::Linear(30, 7));
    to(torch::kDouble);
  }
  Tensor loss(const Tensor& input, const Tensor& target) override {
    return F::cross_entropy(b_->forward(torch::sigmoid(a_->forward(input.to(torch::kDouble)))), target);
  }

 private:
  nn::Linear a_{nullptr};
  nn::Linear b_{nullptr};
};

/// The components of all replicas of all workers.
std::vector<std::pair<std::string, Tensor>> pairs_of(Strategy& strategy, const std::vector<Variable>& variables,
                                                     VariableSynchronization kind) {
  std::vector<std::pair<std::string, Tensor>> pairs;
  for (const Variable& variable : variables) {
    if (variable.synchronization() != kind) continue;
    const PerReplica<Tensor> components = variable.components();
    const Tensor all = strategy.gather(strategy.per_replica([&](ReplicaId r) { return components[r].unsqueeze(0); }));
    for (const Tensor& one : all.unbind()) pairs.emplace_back(variable.name(), one);
  }
  return pairs;
}

/// Cuts a part into `count` micro-batches whose sizes differ by at most one.
std::vector<Batch> micro_batches(const Batch& part, int count) {
  std::vector<Batch> result;
  for (int i = 0; i < count; ++i) {
    const int64_t begin = part.size() * i / count;
    const int64_t length = part.size() * (i + 1) / count - begin;
    result.push_back({part.input.narrow(0, begin, length), part.target.narrow(0, begin, length), {}, part.global_size});
  }
  return result;
}

}  // namespace

std::vector<std::string> lanes(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("cpu:" + std::to_string(i));
  return names;
}

std::shared_ptr<Program> make_program(const std::string& name) {
  if (name == "mlp") return std::make_shared<MlpProgram>();
  if (name == "cnn") return std::make_shared<CnnProgram>();
  if (name == "twice") return std::make_shared<TwiceProgram>();
  if (name == "embedding") return std::make_shared<EmbeddingProgram>();
  if (name == "double") return std::make_shared<DoubleProgram>();
  throw std::invalid_argument("no program " + name);
}

Dataset make_data(const std::string&, int64_t count) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(99);
  return data::from_tensors(torch::randn({count, 24}, generator),
                            torch::randint(0, 7, {count}, generator, torch::kLong));
}

Optimizer make_optimizer(Strategy& strategy, const Replicated<std::shared_ptr<Program>>& model,
                         const std::string& name) {
  using namespace torch::optim;
  if (name == "sgd") return strategy.make_optimizer(model, SGDOptions(0.05));
  if (name == "momentum")
    return strategy.make_optimizer(model, SGDOptions(0.05).momentum(0.9).dampening(0.1).weight_decay(0.01));
  if (name == "nesterov") return strategy.make_optimizer(model, SGDOptions(0.05).momentum(0.9).nesterov(true));
  if (name == "adam") return strategy.make_optimizer(model, AdamOptions(0.01).weight_decay(0.01));
  if (name == "amsgrad") return strategy.make_optimizer(model, AdamOptions(0.01).amsgrad(true));
  if (name == "adamw") return strategy.make_optimizer(model, AdamWOptions(0.01));
  if (name == "rmsprop") return strategy.make_optimizer(model, RMSpropOptions(0.005).momentum(0.5));
  if (name == "centered") return strategy.make_optimizer(model, RMSpropOptions(0.005).centered(true));
  if (name == "adagrad") return strategy.make_optimizer(model, AdagradOptions(0.05).lr_decay(0.01));
  throw std::invalid_argument("no optimizer " + name);
}

Outcome train(const Plan& plan) {
  MirroredStrategy strategy({.devices = lanes(plan.lanes),
                             .replicas = plan.replicas,
                             .copies = plan.copies,
                             .seed = plan.seed,
                             .threads_per_replica = plan.threads_per_replica});
  return train(strategy, plan);
}

Outcome train(Strategy& strategy, const Plan& plan) {
  int64_t replayed = 0;
  return train(strategy, plan, replayed);
}

Outcome train(Strategy& strategy, const Plan& plan, int64_t& replayed) {
  const auto model = strategy.make_module([&] { return make_program(plan.program); });
  const auto optimizer = make_optimizer(strategy, model, plan.optimizer);
  const auto data =
      strategy.distribute(make_data(plan.program, plan.samples), {.global_batch = plan.global_batch, .shuffle = true});

  StepOptions options;
  if (plan.clip > 0) options.clip_global_norm = plan.clip;
  const auto step = [&](ReplicaContext& ctx, const Batch& part) {
    Tensor total = torch::zeros({});
    for (const Batch& micro : micro_batches(part, plan.accumulate)) {
      const Tensor mean = model(ctx)->loss(micro.input, micro.target);
      const Tensor loss = ctx.scale_loss(mean, micro.size(), part.global_size);
      loss.backward();
      total += loss.detach().to(torch::kFloat);
    }
    optimizer.step(ctx, options);
    return total;
  };

  Outcome outcome;
  const auto train_by = [&](const auto& one) {
    int done = 0;
    for (int64_t epoch = 0; done < plan.steps; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        if (done == plan.steps) break;
        outcome.losses.push_back(strategy.reduce(Reduction::kSum, strategy.run(batch, one)).template item<double>());
        ++done;
        if (plan.evaluate_between && done % 5 == 0) {
          strategy.evaluate(
              batch, [&](ReplicaContext& ctx, const Batch& part) { return model(ctx)->loss(part.input, part.target); });
        }
      }
    }
  };
  if (plan.captured) {
    const auto captured = strategy.capture(step);
    train_by(captured);
    replayed = captured.num_replayed();
  } else {
    train_by(step);
  }
  outcome.weights = sha256_of(pairs_of(strategy, model.variables(), VariableSynchronization::kOnWrite));
  outcome.state = sha256_of(pairs_of(strategy, model.variables(), VariableSynchronization::kOnRead));
  auto slots = optimizer.state();
  std::erase_if(slots, [](const auto& one) { return one.first.starts_with("learning_rate/"); });
  outcome.optimizer = sha256_of({slots.begin(), slots.end()});
  return outcome;
}

std::ostream& operator<<(std::ostream& stream, const Plan& plan) {
  return stream << plan.program << " " << plan.optimizer << " V=" << plan.replicas << " D=" << plan.lanes
                << (plan.copies == Copies::kPerReplica ? " copies" : "") << " batch=" << plan.global_batch
                << " accumulate=" << plan.accumulate << " clip=" << plan.clip
                << (plan.evaluate_between ? " evaluate" : "") << (plan.captured ? " captured" : "");
}

std::ostream& operator<<(std::ostream& stream, const Outcome& outcome) {
  return stream << "weights " << outcome.weights.substr(0, 8) << " optimizer " << outcome.optimizer.substr(0, 8)
                << " state " << outcome.state.substr(0, 8) << " last loss "
                << (outcome.losses.empty() ? 0 : outcome.losses.back());
}

}  // namespace lockstep::testing
