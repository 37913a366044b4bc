// Workers that are threads of one process, for tests: each runs one body with a strategy of its own.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/thread_workers.h"
#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep::testing {

class OneOfSeveral final : public Strategy {
 public:
  OneOfSeveral(std::shared_ptr<World> world, int64_t replicas, int num_lanes, std::shared_ptr<const Reducer> reducer,
               WireFormat wire = WireFormat::kExact)
      : Strategy(StrategySetup{.name = "OneOfSeveral",
                               .topology = std::make_shared<HostTopology>(lanes(num_lanes), replicas, false),
                               .reducer = std::move(reducer),
                               .world = std::move(world),
                               .seed = 3,
                               .wire = wire}) {}
};

struct WorkersCase {
  int64_t workers;
  int64_t replicas = 8;
  int lanes = 1;
  WireFormat wire = WireFormat::kExact;
  std::vector<int64_t> hosts = {};  // by worker; empty: all are on one
};

inline std::ostream& operator<<(std::ostream& out, const WorkersCase& one) {
  out << one.replicas << " replicas on " << one.workers << " workers of " << one.lanes << " lanes";
  for (const int64_t host : one.hosts) out << (&host == one.hosts.data() ? " on hosts " : ", ") << host;
  return out;
}

/// A value by worker.
template <class T>
using PerWorker = std::vector<T>;

/// Runs `body(strategy)` on each worker, on a thread of its own, and gives what each returned. Throws the exception of
/// the first worker that threw.
template <class Body>
auto run_workers(const WorkersCase& one, const Body& body, const std::shared_ptr<const Reducer>& reducer = nullptr) {
  using T = std::invoke_result_t<const Body&, Strategy&>;
  PerWorker<T> results(static_cast<std::size_t>(one.workers));
  PerWorker<std::exception_ptr> errors(results.size());
  ThreadWorkers workers(one.workers, std::chrono::seconds(60), one.hosts);
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < one.workers; ++w) {
    threads.emplace_back([&, w, world = workers.world(w)]() mutable {
      const auto i = static_cast<std::size_t>(w);
      try {
        OneOfSeveral strategy(std::move(world), one.replicas, one.lanes, reducer, one.wire);
        results[i] = body(static_cast<Strategy&>(strategy));
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

/// `body` must throw an E with this code and these values on every worker.
template <class E>
void expect_error_on_all(const WorkersCase& one, const std::function<void(Strategy&)>& body, std::string_view code,
                         std::initializer_list<std::string_view> values, const Where& where = Where::current()) {
  run_workers(one, [&](Strategy& strategy) {
    expect_error<E>([&] { body(strategy); }, code, values, where);
    return 0;
  });
}

/// The same for a step that fails: a ReplicaError that is nested on an E.
template <class E>
void expect_step_error_on_all(const WorkersCase& one, const std::function<void(Strategy&)>& body, std::string_view code,
                              std::initializer_list<std::string_view> values, const Where& where = Where::current()) {
  run_workers(one, [&](Strategy& strategy) {
    expect_step_error<E>([&] { body(strategy); }, code, values, where);
    return 0;
  });
}

/// Numbers whose sums depend on the order of additions.
inline torch::Tensor value_of(int64_t replica, at::ScalarType type, at::IntArrayRef sizes = {3, 5}) {
  const torch::Tensor wild =
      torch::arange(15, torch::kDouble).add(1).mul(1.1 + 0.37 * static_cast<double>(replica)).sin();
  const torch::Tensor scaled = wild * std::pow(10.0, static_cast<double>(replica % 5) - 2);
  return at::isIntegralType(type, true) ? (scaled * 10).abs().to(type).reshape(sizes) : scaled.to(type).reshape(sizes);
}

inline PerReplica<torch::Tensor> values_of(Strategy& strategy, at::ScalarType type) {
  return strategy.per_replica([&](ReplicaId r) { return value_of(r, type); });
}

}  // namespace lockstep::testing
