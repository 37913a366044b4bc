// What a program by hand gets from ps-lite: the models of parameter_servers.cpp, whose workers pull, compute by
// LibTorch and push, and a server whose handler looks rows up and applies Adagrad. DMLC_ROLE says what this process is.
// Each worker prints one line of JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <ps/ps.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/bench/made_data.h"
#include "tools/bench/timing.h"
#include "tools/models/models.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;
using Clock = std::chrono::steady_clock;

constexpr int kDim = 32;
constexpr float kRate = 0.01f;
constexpr ps::Key kOfVariables = ps::Key{1} << 40;  // keys of rows are below

struct Options {
  std::string work;
  std::vector<int64_t> widths{784, 1024, 1024, 10};
  int64_t batch = 32;
  int64_t table_rows = 1'000'000;
  int64_t known = 100'000;
  int64_t rows = 1000;
  TimingOptions timing;
};

// The server.

struct Value {
  std::vector<float> weights;
  std::vector<float> slots;
};

class Store {
 public:
  void handle(const ps::KVMeta& meta, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    if (meta.push) {
      // The worker may go on before the update, as with Lockstep; the next request waits for it.
      server->Response(meta);
      std::size_t at = 0;
      for (std::size_t i = 0; i < data.keys.size(); ++i) {
        const std::size_t count = data.lens.empty() ? kDim : static_cast<std::size_t>(data.lens[i]);
        update(value_of(data.keys[i], count), data.vals.data() + at);
        at += count;
      }
      return;
    }
    ps::KVPairs<float> answer;
    answer.keys = data.keys;
    std::vector<const Value*> values;
    std::size_t total = 0;
    for (const ps::Key key : data.keys) {
      values.push_back(&value_of(key, kDim));
      total += values.back()->weights.size();
    }
    answer.vals.resize(total);
    answer.lens.resize(data.keys.size());
    float* to = answer.vals.data();
    for (std::size_t i = 0; i < values.size(); ++i) {
      answer.lens[i] = static_cast<int>(values[i]->weights.size());
      to = std::copy(values[i]->weights.begin(), values[i]->weights.end(), to);
    }
    server->Response(meta, answer);
  }

 private:
  Value& value_of(ps::Key key, std::size_t count) {
    Value& value = values_[key];
    if (value.weights.empty()) {
      value.weights.resize(count);
      value.slots.resize(count);
      uint64_t state = key * 0x9E3779B97F4A7C15u + 1;
      for (float& one : value.weights) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        one = (static_cast<float>(state >> 40) / static_cast<float>(1 << 24) - 0.5f) * 0.1f;
      }
    }
    return value;
  }
  static void update(Value& value, const float* gradient) {
    float* const weights = value.weights.data();
    float* const slots = value.slots.data();
    const std::size_t count = value.weights.size();
    for (std::size_t i = 0; i < count; ++i) {
      slots[i] += gradient[i] * gradient[i];
      weights[i] -= kRate * gradient[i] / (std::sqrt(slots[i]) + 1e-10f);
    }
  }

  std::unordered_map<ps::Key, Value> values_;
};

// A worker.

class Client {
 public:
  /// Values of these keys, which ascend, one after another.
  void pull(const std::vector<ps::Key>& keys, std::vector<float>& values, std::vector<int>& lengths) {
    values.clear();
    lengths.clear();
    worker_.Wait(worker_.Pull(keys, &values, &lengths));
  }
  void push(const ps::SArray<ps::Key>& keys, const ps::SArray<float>& values, const ps::SArray<int>& lengths) {
    worker_.Wait(worker_.ZPush(keys, values, lengths));
  }

 private:
  ps::KVWorker<float> worker_{0, 0};
};

/// The parameters of a module, as keys of their own.
class Parameters {
 public:
  explicit Parameters(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      keys_.push_back(kOfVariables + i);
      lengths_.push_back(static_cast<int>(parameters_[i].numel()));
    }
  }
  /// What the server has at first.
  void begin(Client& client) {
    // A first push makes values of the right lengths. Workers that come later change little.
    std::vector<float> zeros(static_cast<std::size_t>(std::accumulate(lengths_.begin(), lengths_.end(), 0)));
    client.push(ps::SArray<ps::Key>(keys_), ps::SArray<float>(zeros), ps::SArray<int>(lengths_));
  }
  void pull(Client& client) {
    client.pull(keys_, values_, got_);
    int64_t at = 0;
    for (at::Tensor& one : parameters_) {
      one.set_data(at::from_blob(values_.data() + at, one.sizes(), at::kFloat));
      at += one.numel();
    }
  }
  void push(Client& client) {
    std::size_t total = 0;
    for (const int length : lengths_) total += static_cast<std::size_t>(length);
    ps::SArray<float> gradients(total);
    float* to = gradients.data();
    for (at::Tensor& one : parameters_) {
      const at::Tensor gradient = one.grad().contiguous();
      to = std::copy_n(gradient.const_data_ptr<float>(), gradient.numel(), to);
      one.mutable_grad() = at::Tensor();
    }
    client.push(ps::SArray<ps::Key>(keys_), gradients, ps::SArray<int>(lengths_));
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<ps::Key> keys_;
  std::vector<int> lengths_, got_;
  std::vector<float> values_;
};

/// Rows of ids that ascend, as a leaf.
struct Rows {
  std::vector<ps::Key> keys;
  std::vector<float> values;
  std::vector<int> lengths;
  at::Tensor leaf;

  void pull(Client& client) {
    client.pull(keys, values, lengths);
    leaf = at::from_blob(values.data(), {static_cast<int64_t>(keys.size()), kDim}, at::kFloat).requires_grad_();
  }
  void push(Client& client) {
    const at::Tensor gradient = leaf.grad().contiguous();
    client.push(ps::SArray<ps::Key>(keys.data(), keys.size()),
                ps::SArray<float>(gradient.mutable_data_ptr<float>(), static_cast<std::size_t>(gradient.numel())),
                ps::SArray<int>(lengths.data(), lengths.size()));
  }
};

nlohmann::ordered_json report_of(const std::function<void(int64_t)>& repeat, const TimingOptions& timing) {
  const Timing took = measure(repeat, timing);
  return {{"ms", json_of(took, 1e3)}, {"samples_per_second", 1 / took.median}};
}

nlohmann::ordered_json run_dense(Client& client, const Options& options) {
  const ModelOptions model_options{.name = "mlp", .widths = options.widths};
  const auto model = make_model(model_options);
  const Batch batch = made_batch(model_options, options.batch, static_cast<uint64_t>(ps::MyRank()));
  Parameters parameters(model->parameters());
  parameters.begin(client);
  return report_of(
      [&](int64_t steps) {
        for (int64_t i = 0; i < steps; ++i) {
          parameters.pull(client);
          mean_loss(*model, batch.input, batch.target).backward();
          parameters.push(client);
        }
      },
      options.timing);
}

nlohmann::ordered_json run_recommender(Client& client, const Options& options) {
  torch::nn::Linear first(2 * kDim, 64), last(64, 1);
  std::vector<at::Tensor> dense = first->parameters();
  for (const at::Tensor& one : last->parameters()) dense.push_back(one);
  Parameters parameters(dense);
  parameters.begin(client);
  const auto step = [&] {
    // Both tables in one request.
    std::vector<int64_t> all;
    for (int64_t table = 0; table < 2; ++table) {
      const at::Tensor ids = at::randint(options.table_rows, {options.batch}, at::kLong) + table * options.table_rows;
      all.insert(all.end(), ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + options.batch);
    }
    std::vector<int64_t> unique = all;
    std::ranges::sort(unique);
    unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
    Rows rows{.keys = {unique.begin(), unique.end()}, .values = {}, .lengths = {}, .leaf = {}};
    const at::Tensor labels = at::rand({options.batch, 1}).round();
    rows.pull(client);
    parameters.pull(client);
    at::Tensor places = at::empty({2, options.batch}, at::kLong);
    for (std::size_t i = 0; i < all.size(); ++i)
      places.mutable_data_ptr<int64_t>()[i] = std::ranges::lower_bound(unique, all[i]) - unique.begin();
    const at::Tensor input = at::cat({rows.leaf.index_select(0, places[0]), rows.leaf.index_select(0, places[1])}, 1);
    at::binary_cross_entropy_with_logits(last->forward(at::relu(first->forward(input))), labels).backward();
    rows.push(client);
    parameters.push(client);
  };
  return report_of(
      [&](int64_t steps) {
        for (int64_t i = 0; i < steps; ++i) step();
      },
      options.timing);
}

nlohmann::ordered_json run_rows(Client& client, const Options& options) {
  const at::Tensor order = at::randperm(options.known, at::kLong);
  const auto rows_from = [&](int64_t from) {
    const int64_t* const begin = order.const_data_ptr<int64_t>() + from;
    Rows rows{.keys = {begin, begin + options.rows}, .values = {}, .lengths = {}, .leaf = {}};
    std::ranges::sort(rows.keys);
    return rows;
  };
  for (int64_t from = 0; from + options.rows <= options.known; from += options.rows) {
    Rows rows = rows_from(from);
    rows.pull(client);
    rows.leaf.sum().backward();
    rows.push(client);
  }
  std::vector<double> took;
  for (int i = 0; i < 300 * options.timing.blocks; ++i) {
    Rows rows = rows_from(at::randint(options.known - options.rows + 1, {1}, at::kLong).item<int64_t>());
    const auto pulls = Clock::now();
    rows.pull(client);
    const auto pulled = Clock::now();
    rows.leaf.sum().backward();
    const auto pushes = Clock::now();
    rows.push(client);
    took.push_back(std::chrono::duration<double>(pulled - pulls + (Clock::now() - pushes)).count());
  }
  const Timing summary = summarize(took);
  return {{"ms", json_of(summary, 1e3)}, {"samples_per_second", 1 / summary.median}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Steps by ps-lite and LibTorch", "ps_lite");
  app.add_option("work", options.work)->required()->check(CLI::IsMember({"dense", "recommender", "rows"}));
  app.add_option("--widths", options.widths)->delimiter(',')->capture_default_str();
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--table-rows", options.table_rows)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--known", options.known)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rows", options.rows)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--blocks", options.timing.blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--block-seconds", options.timing.block_seconds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);
  ps::Start(0);
  Store store;
  std::unique_ptr<ps::KVServer<float>> server;
  if (ps::IsServer()) {
    server = std::make_unique<ps::KVServer<float>>(0);
    server->set_request_handle([&](const auto& meta, const auto& data, auto* to) { store.handle(meta, data, to); });
  } else if (ps::IsWorker()) {
    Client client;
    const auto work = options.work == "dense" ? run_dense : options.work == "recommender" ? run_recommender : run_rows;
    nlohmann::ordered_json report = work(client, options);
    report["peak_memory_mib"] = 0;
    report["version"] = "ps-lite";
    fmt::print("{}\n", report.dump());
  }
  ps::Finalize(0, true);
  return 0;
}
