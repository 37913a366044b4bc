// Computes many functions, each forward and backward, on two threads at the same time, and says whether a second time
// gives the same bits. Which function comes first in the process is chosen by a number.
#include "tests/first_calls/first_calls.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/activation.h>
#include <torch/types.h>

#include <barrier>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/sha256.h"
#include "lockstep/lockstep.h"
#include "lockstep/testing/local_workers.h"

namespace {

using Function = std::function<torch::Tensor(const torch::Tensor&)>;
using Results = std::vector<torch::Tensor>;  // by function: the values and the gradient in one row

/// Of a matrix [8, 8] of numbers between 0 and 1.
const std::vector<std::pair<std::string, Function>>& functions() {
#define LOCKSTEP_UNARY(name)                                     \
  {                                                              \
#name, [](const torch::Tensor& x) { return torch::name(x); } \
  }
  static const std::vector<std::pair<std::string, Function>> all{
      // MKL's vector functions
      LOCKSTEP_UNARY(exp),
      LOCKSTEP_UNARY(log),
      LOCKSTEP_UNARY(log2),
      LOCKSTEP_UNARY(log10),
      LOCKSTEP_UNARY(sin),
      LOCKSTEP_UNARY(cos),
      LOCKSTEP_UNARY(tan),
      LOCKSTEP_UNARY(asin),
      LOCKSTEP_UNARY(acos),
      LOCKSTEP_UNARY(atan),
      LOCKSTEP_UNARY(tanh),
      LOCKSTEP_UNARY(sqrt),
      LOCKSTEP_UNARY(erf),
      LOCKSTEP_UNARY(erfc),
      LOCKSTEP_UNARY(erfinv),
      {"pow(x, 0.5)", [](const torch::Tensor& x) { return x.pow(0.5); }},
      {"pow(x, 1.5)", [](const torch::Tensor& x) { return x.pow(1.5); }},  // only backward
      {"logsumexp", [](const torch::Tensor& x) { return x.logsumexp({1}); }},
      {"cdist", [](const torch::Tensor& x) { return torch::cdist(x, x.roll(1, 0)); }},
      // others that are set up in the first call: products, factorizations, oneDNN, transforms
      {"mm", [](const torch::Tensor& x) { return x.mm(x); }},
      {"addmm", [](const torch::Tensor& x) { return torch::addmm(x[0], x, x.t()); }},
      {"conv2d",
       [](const torch::Tensor& x) {
         return torch::conv2d(x.view({1, 1, 8, 8}), x.view({4, 1, 4, 4}));
       }},
      {"softmax", [](const torch::Tensor& x) { return x.softmax(1); }},
      LOCKSTEP_UNARY(sigmoid),
      {"gelu", [](const torch::Tensor& x) { return torch::nn::functional::gelu(x); }},
      {"layer_norm", [](const torch::Tensor& x) { return torch::layer_norm(x, {8}); }},
      {"cholesky",
       [](const torch::Tensor& x) { return torch::linalg_cholesky(x.mm(x.t()) + torch::eye(8, x.options())); }},
      {"svdvals", [](const torch::Tensor& x) { return torch::linalg_svdvals(x); }},
      {"rfft", [](const torch::Tensor& x) { return torch::view_as_real(torch::fft_rfft(x)); }},
  };
#undef LOCKSTEP_UNARY
  return all;
}

torch::Tensor input() { return torch::arange(64, torch::kDouble).mul(0.7390851).sin().mul(0.45).add(0.5).view({8, 8}); }

/// All functions, of float and of double, in the order in which number `first` comes first.
Results compute(std::size_t first) {
  const std::size_t count = 2 * functions().size();
  const torch::Tensor numbers = input();
  Results results(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t k = (first + i) % count;
    const torch::Tensor x =
        numbers.to(k % 2 == 0 ? torch::kFloat : torch::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    const torch::Tensor y = functions()[k / 2].second(x);
    y.backward(torch::ones_like(y).mul_(0.75));
    results[k] = torch::cat({y.detach().flatten(), x.grad().flatten()});
  }
  return results;
}

/// Calls the function on two threads at the same time, and returns what they gave.
using OnTwoThreads = std::vector<Results> (*)(std::size_t first);

std::vector<Results> on_lanes(std::size_t first) {
  lockstep::MirroredStrategy strategy(
      {.devices = {"cpu:0", "cpu:1"}, .replicas = 2, .denormals = lockstep::Denormals::kKeep});
  const auto results = strategy.run([&](lockstep::ReplicaContext&) { return compute(first); });
  return {results.begin(), results.end()};
}

std::vector<Results> on_workers(std::size_t first) {
  std::vector<Results> all(2);
  lockstep::testing::LocalWorkers({.workers = 2, .replicas = 2}).run([&](lockstep::Strategy& strategy) {
    const auto results = strategy.run([&](lockstep::ReplicaContext&) { return compute(first); });
    all[static_cast<std::size_t>(strategy.worker_index())] = *results.begin();
  });
  return all;
}

/// In functions of map(), which two threads call, before there is a strategy.
std::vector<Results> on_readers(std::size_t first) {
  std::vector<Results> all(2);
  std::barrier both(2);
  const lockstep::Batch samples{.input = torch::arange(2).view({2, 1}), .target = torch::arange(2)};
  const auto data = lockstep::data::from_tensors(samples.input, samples.target)
                        .map(
                            [&](lockstep::Batch sample) {
                              both.arrive_and_wait();
                              const at::AutoGradMode gradients(true);
                              all[static_cast<std::size_t>(sample.target.item<int64_t>())] = compute(first);
                              return sample;
                            },
                            {.threads = 2});
  static_cast<void>(data.read_all());
  return all;
}

/// On threads of the program, with no strategy at all, which make the first tensors of the process.
std::vector<Results> on_first_tensors(std::size_t first) {
  std::vector<Results> all(2);
  std::barrier both(2);
  const auto body = [&](std::size_t i) {
    both.arrive_and_wait();
    all[i] = compute(first);
  };
  std::thread other(body, 1);
  body(0);
  other.join();
  return all;
}

/// The same after a product of matrices, as a program makes that loads a model first: MKL then knows the processor, and
/// two first calls of vector functions disturb each other more easily.
std::vector<Results> on_own_threads(std::size_t first) {
  static_cast<void>(input().mm(input()));
  return on_first_tensors(first);
}

const std::map<std::string_view, OnTwoThreads>& ways() {
  static const std::map<std::string_view, OnTwoThreads> all{{"lanes", on_lanes},
                                                            {"workers", on_workers},
                                                            {"readers", on_readers},
                                                            {"own-threads", on_own_threads},
                                                            {"first-tensors", on_first_tensors}};
  return all;
}

}  // namespace

int first_calls(const char* way, int first) {
  const auto found = ways().find(way);
  if (found == ways().end()) return 2;
  const std::vector<Results> once = found->second(static_cast<std::size_t>(first));
  const Results again = compute(0);
  int wrong = 0;
  std::vector<std::pair<std::string, torch::Tensor>> named;
  for (std::size_t k = 0; k < again.size(); ++k) {
    for (std::size_t thread = 0; thread < once.size(); ++thread) {
      if (once[thread][k].equal(again[k])) continue;
      ++wrong;
      std::printf("%s of %s on thread %zu was wrong by %g\n", functions()[k / 2].first.c_str(),
                  k % 2 == 0 ? "float" : "double", thread, (once[thread][k] - again[k]).abs().max().item<double>());
    }
    named.emplace_back(functions()[k / 2].first, once[0][k]);
  }
  std::printf("digest %s\n", lockstep::sha256_of(named).c_str());
  return wrong == 0 ? 0 : 1;
}
