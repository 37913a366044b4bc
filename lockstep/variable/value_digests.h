// Whether all workers have the same values, where a program gives them on each worker by itself.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline variable {

/// The names of some values and a digest of each. Workers send them with a Proposal, and compare what all have sent.
/// With one worker it stays empty and costs nothing.
class ValueDigests {
 public:
  explicit ValueDigests(const ReplicaGroup& group);

  /// Adds the digest of dtype, shape and bits. `value` is a dense tensor in the host's memory.
  void add(const std::string& name, const at::Tensor& value);
  /// Writes names and digests into the proposal's data. Where `names_must_match`, the workers' agreement fails where
  /// one worker has other names, dtypes or shapes.
  void fill_in(Proposal& mine, bool names_must_match = true) const;
  /// Compares with what all workers have sent, by name. Throws a DivergenceError, the same on all workers, that names
  /// the first value that differs, the first element in which it does, what each side has there, and the workers.
  /// `call` begins the message. What was given to add() must not have changed; where values differ, workers agree on
  /// that element in a few more calls.
  void require_equal(std::span<const Proposal> all, const char* call) const;

 private:
  /// "at [3, 5] it is 0.5 on worker 1, and 0.25 on worker 0" of this variable, where workers `a` and `b` have other
  /// bits. A call of all workers; `value` is not defined on a worker that has no such variable.
  std::string first_difference(const at::Tensor& value, int64_t a, int64_t b) const;

  const ReplicaGroup& group_;
  const bool is_wanted_;
  std::vector<std::string> names_;
  std::vector<uint64_t> digests_;
  std::vector<at::Tensor> values_;
  uint64_t names_and_shapes_ = 0;
};

}  // namespace lockstep::internal::variable
