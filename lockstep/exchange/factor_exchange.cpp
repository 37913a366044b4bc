#include "lockstep/exchange/factor_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/exchange/messages.h"
#include "lockstep/exchange/row.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/reduce/leaf.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline exchange {

namespace {

/// From so many samples of all replicas on, to make a gradient from its factors on every worker takes longer than to
/// make each replica's once and to exchange sums, on one host.
constexpr int64_t kMostSamplesOfAll = 192;

constexpr auto kSize = static_cast<int64_t>(sizeof(float));

/// Each factor begins where a variable of a row might.
constexpr int64_t padded(int64_t elements) { return aligned(elements * kSize) / kSize; }

int64_t elements_of(const FactorsOutline& outline, const at::Tensor& like) {
  int64_t elements = 0;
  for (const FactorsOutline::Term& term : outline.terms) {
    elements += padded(Factors::left_size(term.samples, like.size(0)));
    elements += padded(Factors::right_size(term.samples, like.size(1)));
  }
  return elements;
}

}  // namespace

bool travels_as_factors(int64_t rows, int64_t columns, std::span<const FactorsOutline> factors,
                        int64_t elements_of_sums) {
  int64_t samples = 0;
  for (const FactorsOutline& one : factors) {
    for (const FactorsOutline::Term& term : one.terms) samples += term.samples;
  }
  if (samples == 0 || samples > kMostSamplesOfAll) return false;
  return samples * (rows + columns) < elements_of_sums;  // all workers together send each sample's factors W - 1 times
}

WayOfGradients choose_ways(std::span<const std::shared_ptr<VariableState>> variables,
                           std::span<const GradientsOnWorkers> all, UpdateForm form, int64_t numbers_for_each) {
  WayOfGradients ways{std::vector<char>(variables.size()), std::vector<char>(variables.size())};
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const at::ScalarType type = variables[i]->number_type();
    if (all[i].gradients != Gradients::kSome || (type != at::kFloat && type != at::kDouble)) continue;
    bool as_factors = !all[i].factors.empty() && form != UpdateForm::kSums;
    if (as_factors && form != UpdateForm::kFactors) {
      const at::Tensor& like = variables[i]->like();
      as_factors = travels_as_factors(like.size(0), like.size(1), all[i].factors, numbers_for_each * like.numel());
    }
    (as_factors ? ways.as_factors : ways.as_sums)[i] = 1;
  }
  return ways;
}

FactorExchange::FactorExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group)
    : variables_(std::move(variables)),
      group_(group),
      worker_(group.rounds().worker_index()),
      arrived_(static_cast<std::size_t>(group.num_workers())),
      bytes_of_variable_(variables_.size(), 0) {
  for (int64_t w = 0; w < group.num_workers(); ++w) {
    blocks_.push_back(block_of(group.num_replicas(), group.num_workers(), w));
  }
}

void FactorExchange::begin_step(const std::vector<GradientsOnWorkers>& all, const std::vector<char>& taken) {
  bytes_sent_ = 0;
  std::fill(bytes_of_variable_.begin(), bytes_of_variable_.end(), 0);
  outlines_ = &all;
  from_others_.clear();
  variables_of_step_.clear();
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) variables_of_step_.push_back(i);
  }
}

template <class Visit>
void FactorExchange::for_each_outline(int64_t worker, const Visit& visit) const {
  for (const std::size_t i : variables_of_step_) {
    for (int64_t r = block(worker).first; r < block(worker).end(); ++r) {
      const FactorsOutline& outline = (*outlines_)[i].factors[static_cast<std::size_t>(r)];
      if (!outline.terms.empty()) visit(i, r, outline);
    }
  }
}

int64_t FactorExchange::elements_of(int64_t worker) const {
  int64_t elements = 0;
  for_each_outline(worker, [&](std::size_t i, int64_t, const FactorsOutline& outline) {
    elements += internal::elements_of(outline, variables_[i]->like());
  });
  return elements;
}

std::vector<int64_t> FactorExchange::elements_by_variable(int64_t worker) const {
  std::vector<int64_t> elements(variables_.size());
  for_each_outline(worker, [&](std::size_t i, int64_t, const FactorsOutline& outline) {
    elements[i] += internal::elements_of(outline, variables_[i]->like());
  });
  return elements;
}

void FactorExchange::pack(const GradientTable& gradients, float* to) const {
  const auto pack = [&](const at::Tensor& factor) {
    std::ranges::copy(host_numbers<float>(factor), to);
    to += padded(factor.numel());
  };
  for_each_outline(worker_, [&](std::size_t i, int64_t r, const FactorsOutline&) {
    for (const Factors::Term& term : gradients.own_leaf(i, r - block(worker_).first).factors()->terms()) {
      pack(term.left);
      pack(term.right);
    }
  });
}

void FactorExchange::send(const GradientTable& gradients) {
  const int64_t own = elements_of(worker_) * kSize;
  grow(packed_, own);
  pack(gradients, reinterpret_cast<float*>(host_bytes_to_write(packed_).data()));
  for_each_outline(worker_, [&](std::size_t i, int64_t, const FactorsOutline& outline) {
    bytes_of_variable_[i] += internal::elements_of(outline, variables_[i]->like()) * kSize * (group_.num_workers() - 1);
  });
  bytes_sent_ = exchange_with_others(
      group_.rounds(), [&](int64_t) { return bytes_of(packed_, own); },
      [&](int64_t w) {
        grow(arrived_[static_cast<std::size_t>(w)], elements_of(w) * kSize);
        return bytes_of(arrived_[static_cast<std::size_t>(w)], elements_of(w) * kSize);
      });
  for (int64_t w = 0; w < group_.num_workers(); ++w) {
    if (w != worker_) unpack(w, arrived_[static_cast<std::size_t>(w)].view(at::kFloat));
  }
}

void FactorExchange::set_leaves(GradientTable& gradients) const {
  const Block own = block(worker_);
  for (const std::size_t i : variables_of_step_) {
    for (int64_t r = own.first; r < own.end(); ++r) gradients.set_leaf(i, r, gradients.own_leaf(i, r - own.first));
  }
  for (const OfReplica& one : from_others_) gradients.set_leaf(one.variable, one.replica, Leaf(*one.factors));
}

void FactorExchange::unpack(int64_t worker, const at::Tensor& memory) {
  int64_t at = 0;
  const auto next = [&](int64_t elements) {
    return memory.narrow(0, std::exchange(at, at + padded(elements)), elements);
  };
  for_each_outline(worker, [&](std::size_t i, int64_t r, const FactorsOutline& outline) {
    const at::Tensor& like = variables_[i]->like();
    std::vector<Factors::Term> terms;
    for (const FactorsOutline::Term& term : outline.terms) {
      const at::Tensor left = next(Factors::left_size(term.samples, like.size(0)));
      const at::Tensor right = next(Factors::right_size(term.samples, like.size(1)));
      terms.push_back({term.samples, term.zero_sums, left, right});
    }
    from_others_.push_back(
        {i, r, std::make_unique<const Factors>(like.size(0), like.size(1), outline.modes, std::move(terms))});
  });
}

}  // namespace lockstep::internal::exchange
