// Rows of sparse gradients between workers: each worker gets those of all replicas, and nothing else of the variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/gradient/gradients_on_workers.h"
#include "lockstep/reduce/rows.h"

namespace lockstep::internal::inline gradient {
class GradientTable;
}  // namespace lockstep::internal::gradient
namespace lockstep::internal::inline core {
class MessageReader;
}  // namespace lockstep::internal::core
namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica
namespace lockstep::internal::inline variable {
class VariableState;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline exchange {

/// Every worker then adds the same rows in the same order. Ids travel as 8 bytes each, numbers in the dtype in which
/// they are added, so that no sum is rounded in between.
class RowExchange {
 public:
  RowExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group);

  /// A call of all workers, in which every worker has said how many rows it has: `all` is what gradients_on_workers()
  /// gave. Does nothing where no replica has a row. While all replicas are at rest.
  void exchange(const GradientTable& gradients, const std::vector<GradientsOnWorkers>& all);
  /// By replica of all workers: its rows of variable i, or null. From the last exchange().
  const std::vector<std::shared_ptr<const Rows>>& rows(std::size_t i) const { return rows_[i]; }

  /// Whether the last step had variable i in rows, and how many bytes this worker sent of it.
  bool has(std::size_t i) const { return i < has_.size() && has_[i] != 0; }
  int64_t bytes_sent(std::size_t i) const { return bytes_sent_[i]; }

 private:
  /// How many bytes a replica's rows take.
  int64_t bytes_of(std::size_t i, int64_t rows) const;
  /// Reads so many rows of variable i from a worker's message.
  Rows read_rows(MessageReader& reader, std::size_t i, int64_t rows) const;

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const ReplicaGroup& group_;
  std::vector<std::vector<std::shared_ptr<const Rows>>> rows_;  // by variable, then replica
  std::vector<char> has_;                                       // by variable
  std::vector<int64_t> bytes_sent_;                             // by variable
};

}  // namespace lockstep::internal::exchange
