// A world that is right, from which tests make broken ones, and how the conformance suite is run on them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/thread_workers.h"
#include "lockstep/core/error.h"
#include "lockstep/testing/world_conformance.h"
#include "tests/support/errors.h"

namespace lockstep::testing {

using To = std::span<const std::span<const std::byte>>;
using From = std::span<const std::span<std::byte>>;

/// A world that is right. Each broken one overrides what it does wrong.
class PassesOn : public World {
 public:
  explicit PassesOn(std::shared_ptr<World> inner) : inner_(std::move(inner)) {}

  int64_t num_workers() const override { return inner_->num_workers(); }
  int64_t worker_index() const override { return inner_->worker_index(); }
  std::vector<std::string> agree(const std::string& mine) override { return inner_->agree(mine); }
  void exchange(To to, From from) override { inner_->exchange(to, from); }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }

 protected:
  /// Some other worker.
  std::size_t other() const { return worker_index() == 0 ? 1 : 0; }

  std::shared_ptr<World> inner_;
};

/// Of two workers, which is the least. Worlds that exhaust their patience are given little of it.
template <class Broken>
WorldConformance worlds_of(int64_t workers = 2, std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  return {.make =
              [](int64_t count, std::chrono::milliseconds for_job) {
                const ThreadWorkers job(count, for_job);
                std::vector<std::shared_ptr<World>> worlds;
                for (int64_t w = 0; w < count; ++w) worlds.push_back(std::make_shared<Broken>(job.world(w)));
                return worlds;
              },
          .workers = {workers},
          .largest_bytes = 1 << 20,
          .patience = patience,
          .stuck = 3 * patience + std::chrono::seconds(1)};
}

/// Each of these checks must find something, and say all of `parts`.
inline void expect_found(const WorldConformance& conformance, const std::vector<std::string>& names,
                         std::initializer_list<std::string_view> parts = {}, const Where& where = Where::current()) {
  for (const std::string& name : names) {
    bool known = false;
    for (const auto& check : world_checks(conformance)) {
      if (check.name.rfind(name + "_", 0) != 0) continue;
      known = true;
      expect_error<DivergenceError>(check.run, "LS-NO-WORLD", parts, where);
    }
    EXPECT_TRUE(known) << name;
  }
}

}  // namespace lockstep::testing
