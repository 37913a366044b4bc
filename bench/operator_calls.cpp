// Measures what an operator call of a step costs: beside the same call outside of steps, and with a listener that hears
// it and does nothing. Prints nanoseconds of a call in the fastest hundredth of many short blocks, so that other
// programs on the machine are felt little.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/intercept/operator_listener.h"
#include "lockstep/intercept/scopes.h"
#include "lockstep/lockstep.h"

namespace {

using namespace lockstep;

class NothingToDo final : public internal::OperatorListener {
 public:
  void hear(internal::OperatorCall&) override {}
};

struct Operator {
  std::string name;
  int64_t calls;  // of a block
  std::function<void()> call;
};

double nanoseconds(const Operator& one) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < one.calls; ++i) one.call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(one.calls);
}

double fastest(std::vector<double> values) {
  const std::size_t place = values.size() / 100;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(place), values.end());
  return values[place];
}

}  // namespace

int main(int argc, char** argv) {
  int blocks = 2000;
  bool with_listener = false;
  CLI::App app("An operator call of a step", "operator_calls");
  app.add_option("--blocks", blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--listener", with_listener, "also with a listener that does nothing");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);  // what a replica has
  const at::Tensor a = at::rand({8}), b = at::rand({8});
  const at::Tensor left = at::rand({8, 8}), right = at::rand({8, 8});
  const at::Tensor few = at::rand({8, 512}), weight = at::rand({512, 512});
  at::Tensor drawn = at::empty({8});
  const std::vector<Operator> operators{
      {"add of 8", 100, [&] { at::add(a, b); }},
      {"mm of 8 x 8", 100, [&] { at::mm(left, right); }},
      {"mm of 8 x 512 and a weight of 512 x 512", 3, [&] { at::mm(few, weight.t()); }},
      {"bernoulli_ of 8", 100, [&] { drawn.bernoulli_(0.5); }},
  };

  OneDeviceStrategy strategy({.device = "cpu:0"});
  NothingToDo listener;
  fmt::print("{:42} {:>9} {:>9}{}\n", "ns of a call", "outside", "in a step", with_listener ? "     heard" : "");
  for (const Operator& one : operators) {
    std::vector<double> outside, inside, heard;
    for (int block = 0; block < blocks; ++block) {
      const at::NoGradGuard no_grad;
      outside.push_back(nanoseconds(one));
      strategy.run([&](ReplicaContext&) {
        inside.push_back(nanoseconds(one));
        if (!with_listener) return;
        const internal::ListeningScope scope(listener);
        heard.push_back(nanoseconds(one));
      });
    }
    fmt::print("{:42} {:9.1f} {:9.1f}", one.name, fastest(outside), fastest(inside));
    if (with_listener) fmt::print(" {:9.1f}", fastest(heard));
    fmt::print("\n");
  }
}
