#include "lockstep/gradient/gradients_on_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/blocks.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline gradient {

namespace {

// What a worker tells begins with a letter for itself, and a letter for each variable. For each variable with kFactors
// follow its local replicas: the modes and the number of terms, and a word for each term, its samples and whether its
// zeros are signed. For each variable with kRows follows for each local replica how many rows it has. The report is the
// rest.
constexpr char kMakesFactors = 'm';    // it has loops that make gradients from factors
constexpr char kMakesNone = 'n';       // it has none: no gradient can travel as factors
constexpr char kFirstGradients = '0';  // the Gradients as a digit
constexpr char kFactors = 'x';         // kSome, and all of them are kept as factors
constexpr char kRows = 'r';            // kSome, and all of them are kept as rows
constexpr char kRowsOfZero = 'z';      // kOfZero, and all of them are kept as rows
constexpr char kFrozen = 'f';          // kNone, and the variable is frozen

char letter_of(const GradientTable& local, const VariableState& variable, std::size_t i, int64_t replicas) {
  const Gradients own = local.gradients_here(i);
  if (own == Gradients::kNone) return variable.component(0).requires_grad() ? kFirstGradients : kFrozen;
  if (local.in_rows_here(i)) return own == Gradients::kSome ? kRows : kRowsOfZero;
  if (own == Gradients::kSome) {
    bool all = true;
    for (int64_t r = 0; r < replicas; ++r) {
      const Leaf leaf = local.own_leaf(i, r);
      all = all && (!leaf.present() || leaf.factors() != nullptr);
    }
    if (all) return kFactors;
  }
  return static_cast<char>(kFirstGradients + static_cast<char>(own));
}

void append_outline(std::string& data, const Factors* factors) {
  ByteWriter to(data);
  to.put(uint32_t{factors ? factors->modes() : 0});
  to.put(factors ? static_cast<uint32_t>(factors->terms().size()) : 0u);
  if (!factors) return;
  for (const Factors::Term& term : factors->terms()) {
    to.put(static_cast<uint32_t>(term.samples) << 1 | (term.zero_sums == ZeroSums::kSigned ? 1u : 0u));
  }
}

/// Reads what append_outline() has written.
FactorsOutline outline_from(MessageReader& reader) {
  FactorsOutline one{.modes = reader.get<uint32_t>(), .terms = {}};
  for (std::size_t left = reader.get_count<uint32_t>(sizeof(uint32_t)); left > 0; --left) {
    const auto term = reader.get<uint32_t>();
    reader.expect(term >> 1 > 0);
    one.terms.push_back({term >> 1, (term & 1) != 0 ? ZeroSums::kSigned : ZeroSums::kPositive});
  }
  return one;
}

/// Whether all replicas that have factors made them in the same floating-point modes.
bool have_equal_modes(const std::vector<FactorsOutline>& factors) {
  const FactorsOutline* first = nullptr;
  for (const FactorsOutline& one : factors) {
    if (one.terms.empty()) continue;
    if (!first) first = &one;
    if (one.modes != first->modes) return false;
  }
  return first != nullptr;
}

}  // namespace

ToldOfGradients gradients_on_workers(const ReplicaGroup& group,
                                     std::span<const std::shared_ptr<VariableState>> variables,
                                     const GradientTable& local, std::string_view report, FunctionRef<void()> check) {
  const auto fill_in = [&](Proposal& mine) {
    check();
    mine.data = Factors::available() ? kMakesFactors : kMakesNone;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      mine.data += letter_of(local, *variables[i], i, group.num_local_replicas());
    }
    for (std::size_t i = 0; i < variables.size(); ++i) {
      for (int64_t r = 0; r < group.num_local_replicas(); ++r) {
        if (mine.data[1 + i] == kFactors) append_outline(mine.data, local.own_leaf(i, r).factors());
        if (mine.data[1 + i] != kRows) continue;
        const std::shared_ptr<const Rows> rows = local.own_rows(i, r);
        ByteWriter(mine.data).put(rows ? static_cast<uint32_t>(rows->count()) : 0u);
      }
    }
    mine.data += report;
  };
  const auto all = agree_on_call(group.rounds(), {.call = "gradients", .step = group.step()}, fill_in);
  std::vector<GradientsOnWorkers> anywhere(variables.size());
  std::vector<std::string> reports;
  std::vector<char> all_factors(variables.size(), 1);
  std::vector<char> all_rows(variables.size(), 1);
  std::vector<int64_t> frozen(variables.size(), -1);
  std::vector<int64_t> trained(variables.size(), -1);
  for (std::size_t w = 0; w < all.size(); ++w) {
    MessageReader reader(all[w].data, static_cast<int64_t>(w), "what gradients it has");
    const std::string_view letters = reader.get_bytes(1 + variables.size());
    reader.expect(letters[0] == kMakesFactors || letters[0] == kMakesNone);
    if (letters[0] == kMakesNone) std::fill(all_factors.begin(), all_factors.end(), 0);
    const Block block = block_of(group.num_replicas(), group.num_workers(), static_cast<int64_t>(w));
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const char letter = letters[1 + i];
      (letter == kFrozen ? frozen : trained)[i] = static_cast<int64_t>(w);
      Gradients theirs = Gradients::kNone;
      if (letter == kFactors) {
        theirs = Gradients::kSome;
        anywhere[i].factors.resize(static_cast<std::size_t>(group.num_replicas()));
        for (int64_t r = block.first; r < block.end(); ++r) {
          anywhere[i].factors[static_cast<std::size_t>(r)] = outline_from(reader);
        }
        all_rows[i] = 0;
      } else if (letter == kRows || letter == kRowsOfZero) {
        theirs = letter == kRows ? Gradients::kSome : Gradients::kOfZero;
        anywhere[i].in_rows = true;
        anywhere[i].row_counts.resize(static_cast<std::size_t>(group.num_replicas()));
        const at::Tensor& like = variables[i]->like();
        for (int64_t r = block.first; letter == kRows && r < block.end(); ++r) {
          const auto count = reader.get<uint32_t>();
          reader.expect(like.dim() > 0 && count <= like.size(0));
          anywhere[i].row_counts[static_cast<std::size_t>(r)] = count;
        }
        if (letter == kRows) all_factors[i] = 0;
      } else if (letter != kFrozen) {
        const int digit = letter - kFirstGradients;
        reader.expect(digit >= 0 && digit <= static_cast<int>(Gradients::kSome));
        theirs = static_cast<Gradients>(digit);
        if (theirs == Gradients::kSome) all_factors[i] = 0;
        if (theirs != Gradients::kNone) all_rows[i] = 0;
      }
      anywhere[i].gradients = std::max(anywhere[i].gradients, theirs);
    }
    reader.expect(reader.left().size() == report.size());
    reports.emplace_back(reader.left());
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (!all_factors[i] || !have_equal_modes(anywhere[i].factors)) anywhere[i].factors.clear();
    if (!all_rows[i]) anywhere[i].in_rows = false;
    if (frozen[i] < 0 || trained[i] < 0) continue;
    throw UsageError("LS-FROZEN-UNLIKE",
                     fmt::format("variable '{}' is frozen on worker {} and not on worker {}", variables[i]->name(),
                                 frozen[i], trained[i]),
                     "call requires_grad_() with the same value on all replicas");
  }
  return {std::move(anywhere), std::move(reports)};
}

}  // namespace lockstep::internal::gradient
