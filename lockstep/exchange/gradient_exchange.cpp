#include "lockstep/exchange/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/torch_compat.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline exchange {

namespace {

/// All workers together send partial sums of each gradient, and its sum, once each W - 1 times.
int64_t elements_of_sums(const at::Tensor& like, WireFormat wire) {
  return wire == WireFormat::kBFloat16 ? like.numel() : 2 * like.numel();
}

}  // namespace

GradientExchange::GradientExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group,
                                   UpdateForm form, WireFormat wire, bool buckets)
    : variables_(std::move(variables)),
      group_(group),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
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
  factored_.assign(variables_.size(), 0);
  std::vector<char> summed(variables_.size());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!takes(i) || all[i].gradients != Gradients::kSome) continue;
    const at::Tensor& like = variables_[i]->like();
    bool as_factors = !all[i].factors.empty() && form_ != UpdateForm::kSums;
    if (as_factors && form_ != UpdateForm::kFactors)
      as_factors = travels_as_factors(like.size(0), like.size(1), all[i].factors, elements_of_sums(like, wire_));
    (as_factors ? factored_ : summed)[i] = 1;
  }
  factors_.begin_step(all, factored_);
  if (buckets_) buckets_->begin_step(reports);
  if (summed != summed_) lay_out(summed, all);
  if (buckets_) buckets_->prepare();
  rest_ = row_.behind(buckets_ ? buckets_->num_sent() : 0);
}

void GradientExchange::lay_out(const std::vector<char>& summed, const std::vector<GradientsOnWorkers>& all) {
  summed_.clear();  // where memory is short, the next step begins again
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
  summed_ = summed;
}

void GradientExchange::pack(const GradientTable& gradients, int lane, int num_lanes) {
  row_.pack(gradients, rest_, lane, num_lanes);
}

template <class To, class From>
void GradientExchange::exchange(const To& to_of, const From& from_of) {
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(num_workers_));
  std::vector<std::span<std::byte>> from(to.size());
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    const auto at = static_cast<std::size_t>(w);
    to[at] = to_of(w);
    from[at] = from_of(w);
    bytes_sent_ += static_cast<int64_t>(to[at].size());
  }
  group_.rounds().exchange(to, from);
}

void GradientExchange::send(const GradientTable& gradients) {
  if (factors_.has_any()) factors_.send(gradients);
  if (row_.is_empty()) return;
  // Also where all was sent ahead: then it has arrived.
  exchange([&](int64_t w) { return row_.packed(rest_, w); }, [&](int64_t w) { return row_.arrived(rest_, w); });
  if (buckets_) buckets_->send_sums();
}

void GradientExchange::add(int lane, int num_lanes) { row_.add(rest_, lane, num_lanes); }

void GradientExchange::send_sums() {
  if (!row_.is_empty()) {
    exchange([&](int64_t) { return row_.sums(rest_, worker_); }, [&](int64_t w) { return row_.sums(rest_, w); });
  }
  if (buckets_) buckets_->end_step();
}

Travelled GradientExchange::travelled(std::size_t i) const {
  if (i < factored_.size() && factored_[i]) return {Travelled::As::kFactors, factors_.bytes_sent_of(i)};
  if (i >= summed_.size() || !summed_[i]) return {};
  // Partial sums of what others own, and to each of them the sum of what this worker owns.
  const int64_t begin = row_.place(i);
  const int64_t end = begin + row_.bytes(i);
  int64_t own = 0;
  const auto count = [&](const SumRow::Section& section) {
    const SumRow::Slice& slice = section[static_cast<std::size_t>(worker_)];
    own += std::max<int64_t>(std::min(end, slice.begin + slice.bytes) - std::max(begin, slice.begin), 0);
  };
  const std::size_t ahead = buckets_ ? buckets_->num_sent() : 0;
  for (std::size_t b = 0; b < ahead; ++b) count(row_.buckets()[b]);
  count(rest_);
  const auto subtrees_here = static_cast<int64_t>(row_.subtrees(worker_).size());
  return {.as = Travelled::As::kSums,
          .bytes = (end - begin - own) * subtrees_here + own * (num_workers_ - 1),
          .during_backward = end <= rest_.front().begin,
          .is_rounded = row_.is_rounded(i)};
}

void GradientExchange::set_leaves(GradientTable& gradients) const {
  // A sum stands as the leaf of the first replica.
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (summed_[i]) gradients.set_leaf(i, 0, Leaf(row_.sum(i)));
  }
  factors_.set_leaves(gradients);
}

}  // namespace lockstep::internal::exchange
