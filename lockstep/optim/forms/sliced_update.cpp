#include "lockstep/optim/forms/sliced_update.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/loops/simd.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/exchange/messages.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/optim/forms/compare_values.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

namespace {

const at::Tensor& of(const std::vector<at::Tensor>& by_worker, int64_t worker) {
  return by_worker[static_cast<std::size_t>(worker)];
}

/// The set of vector instructions in what digest_of_weights() gave a worker.
std::string_view loops_in(const Proposal& told) { return std::string_view(told.data).substr(0, told.data.rfind(' ')); }

}  // namespace

std::string SlicedUpdate::obstacle(const ReplicaGroup& group,
                                   const std::vector<std::shared_ptr<VariableState>>& variables) {
  if (!group.reducer().in_tree_order()) return "sums are added by a reducer of the program's own";
  for (const auto& variable : variables) {
    const at::ScalarType type = variable->number_type();
    if (variable->is_trained_locally()) return "each replica trains variables of its own";
    if (type != at::kFloat && type != at::kDouble)
      return fmt::format("'{}' is {}", variable->name(), c10::toString(type));
  }
  return "";
}

SlicedUpdate::SlicedUpdate(const ReplicaGroup& group, const FusedUpdate& update,
                           const std::vector<std::vector<double>>& initial, std::string name, UpdateForm form)
    : group_(group),
      targets_(update.targets()),
      variables_(variables_of(targets_)),
      name_(std::move(name)),
      form_(form),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
      slices_(update.plan().shares(), num_workers_, group.plan().num_lanes()),
      slots_(group, targets_, initial, slices_, name_),
      partial_sums_(group),
      factors_(variables_, group),
      theirs_(static_cast<std::size_t>(num_workers_)),
      arrived_(theirs_.size()) {}

void SlicedUpdate::begin_step(const ToldOfGradients& told, const std::vector<char>& present) {
  slots_.slice(told.reports);
  const std::vector<GradientsOnWorkers>& all = told.gradients;
  sent_ = Sent::kNothing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    foreign_writes_.clear();
  }
  // No sum is sent back, so that sums cost half of what they cost where every worker updates all. New weights travel in
  // both forms.
  WayOfGradients ways = choose_ways(variables_, all, form_, /*numbers_for_each=*/1);
  factored_ = std::move(ways.as_factors);
  factors_.begin_step(all, factored_);
  if (!sums_.layout.takes_exactly(ways.as_sums)) sums_ = lay_out(ways.as_sums);
  if (!weights_.layout.takes_exactly(present)) weights_ = lay_out(present);
  for (int64_t w = 0; w < num_workers_; ++w) {
    const auto at = static_cast<std::size_t>(w);
    const int64_t back = weights_.bytes(w) + square_bytes(w);
    if (w == worker_) {
      grow(own_, back);
      continue;
    }
    grow(theirs_[at], std::max(sums_.bytes(w) * partial_sums_.count(worker_), back));
    grow(arrived_[at], sums_.bytes(worker_) * partial_sums_.count(w));
  }
}

SlicedUpdate::SlicedRow SlicedUpdate::lay_out(std::span<const char> taken) const {
  SlicedRow row{row_of_blocks(variables_, taken), {}, {}};
  row.section = row.layout.cut(slices_);
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    for (const RowPiece& piece : row.layout.pieces(row.section[static_cast<std::size_t>(w)]))
      row.theirs.push_back({piece, w});
  }
  return row;
}

SumsInMemory SlicedUpdate::SlicedRow::in(const at::Tensor& memory, int64_t worker) const {
  const RowSlice& slice = section[static_cast<std::size_t>(worker)];
  return {host_bytes_to_write(memory).data(), slice.begin, slice.bytes};
}

void SlicedUpdate::pack(const GradientTable& gradients, int lane, int num_lanes) {
  partial_sums_.restart(lane);
  for (const Piece& piece : share_of<Piece>(sums_.theirs, lane, num_lanes))
    partial_sums_.pack(gradients, lane, piece.row, sums_.in(of(theirs_, piece.worker), piece.worker));
}

void SlicedUpdate::send(GradientTable& gradients) {
  if (factors_.has_any()) factors_.send(gradients);
  exchange_with_others(
      group_.rounds(),
      [&](int64_t w) { return bytes_of(of(theirs_, w), sums_.bytes(w) * partial_sums_.count(worker_)); },
      [&](int64_t w) { return bytes_of(of(arrived_, w), sums_.bytes(worker_) * partial_sums_.count(w)); });
  sent_ = Sent::kGradients;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!sums_.layout.takes(i) || slices_.of(i, worker_).bytes == 0) continue;
    // What has arrived is the own slice alone; the leaf's memory is as if it had all of the variable.
    partial_sums_.set_leaves(gradients, i, sums_.layout.place(i),
                             [&](int64_t w) { return sums_.in(of(arrived_, w), worker_); });
  }
  factors_.set_leaves(gradients);
}

std::span<std::byte> SlicedUpdate::squares_of(FusedUpdate& update, int64_t worker) const {
  return std::as_writable_bytes(update.squares())
      .subspan(static_cast<std::size_t>(slices_.first_block(worker)) * sizeof(double),
               static_cast<std::size_t>(square_bytes(worker)));
}

void SlicedUpdate::share_squares(FusedUpdate& update) {
  exchange_with_others(
      group_.rounds(), [&](int64_t) { return squares_of(update, worker_); },
      [&](int64_t w) { return squares_of(update, w); });
}

void SlicedUpdate::prepare(FusedUpdate& update, const GradientTable& gradients, int lane, int num_lanes,
                           const Clip& clip, bool is_measured) {
  const auto place = [&](std::size_t i, int64_t offset) {
    return reinterpret_cast<char*>(weights_.in(own_, worker_).at(0, weights_.layout.place(i) + offset));
  };
  update.prepare(gradients, lane, clip, is_measured, place);
  for (const Piece& piece : share_of<Piece>(weights_.theirs, lane, num_lanes)) check_piece(piece);
}

void SlicedUpdate::check_piece(const Piece& piece) {
  VariableState& variable = *variables_[piece.row.variable];
  for (std::size_t copy = 0; copy < variable.copies().size(); ++copy) {
    const std::byte* const memory = host_bytes(variable.copies()[copy]).data() + piece.begin();
    if (variable.checksums(copy)[piece.begin() / kBlockBytes] == checksum(memory, piece.bytes())) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    foreign_writes_.push_back({piece.row.variable, copy});
    return;
  }
}

void SlicedUpdate::vote(FusedUpdate& update, FunctionRef<void(Proposal&)> tell) {
  // Behind a worker's new weights are the squares of its blocks.
  const auto message = [&](const at::Tensor& memory, int64_t w) {
    return bytes_of(memory, weights_.bytes(w) + square_bytes(w));
  };
  const auto squares_in = [&](const at::Tensor& memory, int64_t w) {
    return message(memory, w).subspan(static_cast<std::size_t>(weights_.bytes(w)));
  };
  std::ranges::copy(squares_of(update, worker_), squares_in(own_, worker_).begin());
  exchange_with_others(
      group_.rounds(), [&](int64_t) { return message(own_, worker_); },
      [&](int64_t w) { return message(of(theirs_, w), w); });
  sent_ = Sent::kAll;
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w != worker_) std::ranges::copy(squares_in(of(theirs_, w), w), squares_of(update, w).begin());
  }
  const auto fill_in = [&](Proposal& mine) {
    require_no_foreign_write(update);
    tell(mine);
    mine.data = digest_of_weights();
  };
  const auto all = agree_on_call(group_.rounds(),
                                 {.call = "new values of an update", .name = name_, .step = group_.step()}, fill_in);
  // New weights would cover what workers had before: nobody would find it later.
  const auto has_loops_of = [](const Proposal& a, const Proposal& b) { return loops_in(a) == loops_in(b); };
  for (const Proposal& one : all) {  // from here on without memory: the others apply the step
    const auto first = std::ranges::find_if(all, [&](const Proposal& other) { return has_loops_of(other, one); });
    if (first->data != one.data) return compare_weights();
  }
}

void SlicedUpdate::require_no_foreign_write(FusedUpdate& update) {
  std::vector<ForeignWrite> found = update.take_foreign_writes();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    found.insert(found.end(), foreign_writes_.begin(), foreign_writes_.end());
  }
  std::ranges::sort(found);  // lanes find them in any order
  for (const auto& [i, copy] : found) targets_[i].variable->as_mirrored().damaged_in_memory(copy);
  if (!found.empty()) targets_[found.front().target].variable->require_sound();  // throws
}

std::string SlicedUpdate::digest_of_weights() const {
  Digest digest;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!weights_.layout.takes(i)) continue;
    VariableState& variable = *targets_[i].variable;
    const uint64_t* const checksums = variable.checksums(0);
    for (int64_t block = 0; block < blocks_of(variable.bytes()); ++block) digest = digest.with(checksums[block]);
  }
  return fmt::format("{} {:016x}", internal::name_of(simd()), digest.value());
}

void SlicedUpdate::compare_weights() const {
  std::vector<MirroredState*> weights;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (weights_.layout.takes(i)) weights.push_back(&targets_[i].variable->as_mirrored());
  }
  compare_values(group_, name_, weights);
}

void SlicedUpdate::commit(int lane, int num_lanes) const {
  for (const Piece& piece : share_of<Piece>(weights_.theirs, lane, num_lanes)) {
    VariableState& variable = *variables_[piece.row.variable];
    const std::byte* const from = weights_.in(of(theirs_, piece.worker), piece.worker).at(0, piece.row.place);
    const uint64_t written = checksum(from, piece.bytes());
    for (std::size_t copy = 0; copy < variable.copies().size(); ++copy) {
      std::byte* const to = host_bytes_to_write(variable.copies()[copy]).data() + piece.begin();
      std::memcpy(to, from, static_cast<std::size_t>(piece.bytes()));
      variable.checksums(copy)[piece.begin() / kBlockBytes] = written;
    }
  }
}

bool SlicedUpdate::own_sum_is_finite(const GradientTable& gradients, std::size_t i) const {
  const Slice own = slices_.of(i, worker_);
  const auto size = static_cast<int64_t>(targets_[i].variable->numbers().element_size());
  return own.bytes == 0 || gradients.sum_is_finite(i, own.begin / size, own.bytes / size);
}

Travelled SlicedUpdate::travelled(std::size_t i) const {
  if (sent_ == Sent::kNothing || !weights_.layout.takes(i)) return {};
  const int64_t own = slices_.of(i, worker_).bytes;
  Travelled travelled{.as = factored_[i] ? Travelled::As::kFactors : Travelled::As::kSums};
  if (sent_ == Sent::kAll) travelled.bytes += own * (num_workers_ - 1);
  if (factored_[i]) travelled.bytes += factors_.bytes_sent_of(i);
  if (sums_.layout.takes(i)) travelled.bytes += (targets_[i].variable->bytes() - own) * partial_sums_.count(worker_);
  return travelled;
}

}  // namespace lockstep::internal::optim
