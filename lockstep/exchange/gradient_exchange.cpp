#include "lockstep/exchange/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "lockstep/exchange/messages.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline exchange {

GradientExchange::GradientExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group,
                                   UpdateForm form, WireFormat wire, bool buckets)
    : variables_(std::move(variables)),
      group_(group),
      form_(form),
      wire_(wire),
      factors_(variables_, group),
      row_(variables_, group, wire),
      buckets_(GradientBuckets::make(variables_, group, row_, buckets)) {}

bool GradientExchange::takes(std::size_t i) const {
  const at::ScalarType type = variables_[i]->number_type();
  return type == at::kFloat || type == at::kDouble;
}

void GradientExchange::compare(const GradientTable& gradients, int lane) {
  if (buckets_) buckets_->compare(gradients, lane);
}

std::string GradientExchange::report() const { return buckets_ ? buckets_->report() : std::string(); }

void GradientExchange::begin_step(const std::vector<GradientsOnWorkers>& all, std::span<const std::string> reports) {
  bytes_sent_ = 0;
  // All workers together send partial sums of each gradient, and its sum, once each W - 1 times.
  const int64_t sums = wire_ == WireFormat::kBFloat16 ? 1 : 2;
  WayOfGradients ways = choose_ways(variables_, all, form_, sums);
  factored_ = std::move(ways.as_factors);
  factors_.begin_step(all, factored_);
  if (buckets_) buckets_->begin_step(reports);
  if (!row_.layout().takes_exactly(ways.as_sums)) lay_out(ways.as_sums, all);
  if (buckets_) buckets_->prepare();
  rest_ = row_.behind(buckets_ ? buckets_->num_sent() : 0);
}

void GradientExchange::lay_out(const std::vector<char>& summed, const std::vector<GradientsOnWorkers>& all) {
  // Backward comes to the last layers first. A gradient that is kept as factors is not in memory while it computes.
  std::vector<std::size_t> order;
  for (const bool in_memory : {true, false}) {
    for (std::size_t i = variables_.size(); i-- > 0;) {
      if (summed[i] && all[i].factors.empty() == in_memory) order.push_back(i);
    }
  }
  const auto is_in_memory = [&](std::size_t i) { return all[i].factors.empty(); };
  const auto in_memory = static_cast<std::size_t>(std::count_if(order.begin(), order.end(), is_in_memory));
  if (buckets_) buckets_->restart({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(in_memory)});
  row_.lay_out(order, buckets_ ? in_memory : 0);
}

void GradientExchange::pack(const GradientTable& gradients, int lane, int num_lanes) {
  row_.pack(gradients, rest_, lane, num_lanes);
}

void GradientExchange::send(const GradientTable& gradients) {
  if (factors_.has_any()) factors_.send(gradients);
  if (row_.layout().is_empty()) return;
  // Also where all was sent ahead: then it has arrived.
  bytes_sent_ += exchange_with_others(
      group_.rounds(), [&](int64_t w) { return row_.packed(rest_, w); },
      [&](int64_t w) { return row_.arrived(rest_, w); });
  if (buckets_) buckets_->send_sums();
}

void GradientExchange::add(int lane, int num_lanes) { row_.add(rest_, lane, num_lanes); }

void GradientExchange::send_sums() {
  if (!row_.layout().is_empty()) {
    bytes_sent_ += exchange_with_others(
        group_.rounds(), [&](int64_t) { return row_.sums(rest_, group_.rounds().worker_index()); },
        [&](int64_t w) { return row_.sums(rest_, w); });
  }
  if (buckets_) buckets_->end_step();
}

Travelled GradientExchange::travelled(std::size_t i) const {
  if (i < factored_.size() && factored_[i]) return {Travelled::As::kFactors, factors_.bytes_sent_of(i)};
  if (!row_.layout().takes(i)) return {};
  return {.as = Travelled::As::kSums,
          .bytes = row_.bytes_sent(i, buckets_ ? buckets_->num_sent() : 0),
          .during_backward = row_.layout().end(i) <= rest_.front().begin,
          .is_rounded = row_.is_rounded(i)};
}

void GradientExchange::set_leaves(GradientTable& gradients) const {
  // A sum stands as the leaf of the first replica.
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (row_.layout().takes(i)) gradients.set_leaf(i, 0, Leaf(row_.sum(i)));
  }
  factors_.set_leaves(gradients);
}

}  // namespace lockstep::internal::exchange
