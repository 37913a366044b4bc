#include "lockstep/exchange/gradient_buckets.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/core/bytes.h"
#include "lockstep/core/denormals.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline exchange {

namespace {

/// From so many on, after three steps in a row or every other step for a while, it is the program's way to change
/// gradients after backward.
constexpr int kMostMispredictions = 6;
constexpr int kMisprediction = 2;
/// Bytes are moved no more often: each move asks the system for each other worker.
constexpr std::chrono::microseconds kMoveEvery{20};

}  // namespace

std::unique_ptr<GradientBuckets> GradientBuckets::make(std::vector<std::shared_ptr<VariableState>> variables,
                                                       const ReplicaGroup& group, SumRow& row, bool is_wanted) {
  if (!row.has_one_sum_of_each() || !group.rounds().windows()) return nullptr;
  return std::unique_ptr<GradientBuckets>(new GradientBuckets(std::move(variables), group, row, is_wanted));
}

GradientBuckets::GradientBuckets(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group,
                                 SumRow& row, bool is_wanted)
    : variables_(std::move(variables)),
      group_(group),
      row_(row),
      windows_(*group.rounds().windows()),
      mutex_(group.rounds().windows_mutex()),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
      is_wanted_(is_wanted),
      replicas_(static_cast<std::size_t>(group.num_local_replicas())),
      complete_(std::make_unique<std::atomic<int64_t>[]>(variables_.size())),
      sound_(static_cast<std::size_t>(group.plan().num_lanes())),
      in_row_(variables_.size()),
      arrived_before_(static_cast<std::size_t>(num_workers_)),
      sent_by_(static_cast<std::size_t>(num_workers_)),
      is_packed_(variables_.size()) {
  for (OfReplica& one : replicas_) {
    one.expected.resize(variables_.size());
    one.counted.resize(variables_.size());
    one.complete.resize(variables_.size());
  }
}

GradientBuckets::~GradientBuckets() { close(); }

void GradientBuckets::accumulated(OfReplica& replica, std::size_t i, const at::Tensor& gradient) {
  // A backward outside of steps, or on a thread of the program's own, may run beside a call of the World.
  const ReplicaContext* const context = current_context();
  if (process_.is_in_child() || !context || &ContextAccess::group(*context) != &group_ || group_.evaluating()) return;
  bool is_last = false;
  if (++replica.counted[i] == replica.expected[i] && fits(i, gradient)) {
    // A handle of its own keeps the memory, whatever becomes of .grad(). What is in it may still change. It does not
    // last until the step: a gradient whose memory has another owner would be copied there.
    replica.complete[i] = gradient.detach();
    // Whoever counts the last one sees the gradients of all.
    is_last = complete_[i].fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int64_t>(replicas_.size());
  }
  if (is_last) pack(i);
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (is_last) {
    lock.lock();
    is_packed_[i] = 1;
    const auto [first, last] = row_.buckets_of(i);
    for (std::size_t b = first; b < last; ++b) --waits_[b];
  } else if (!lock.try_lock()) {
    return;  // another replica moves what there is
  }
  if (is_broken_ || group_.rounds().failure()) return;
  send_complete();
  const auto now = std::chrono::steady_clock::now();
  if (now - moved_ < kMoveEvery) return;
  moved_ = now;
  progress();
}

bool GradientBuckets::fits(std::size_t i, const at::Tensor& gradient) const {
  const at::Tensor& like = variables_[i]->like();
  return in_row_[i] && variables_[i]->bytes() > 0 && gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.device().is_cpu() && gradient.scalar_type() == like.scalar_type() &&
         gradient.sizes() == like.sizes() && gradient.strides() == like.strides() && !gradient.is_neg() &&
         !gradient.is_conj() && !factors_of(gradient);
}

void GradientBuckets::pack(std::size_t i) {
  c10::SmallVector<const void*, 16> gradients;
  for (const OfReplica& one : replicas_) gradients.push_back(host_bytes(one.complete[i]).data());
  row_.pack(i, {gradients.data(), gradients.size()});
  for (OfReplica& one : replicas_) one.complete[i] = at::Tensor();
}

void GradientBuckets::send_complete() {
  while (sent_ < waits_.size() && waits_[sent_] == 0) {
    const RowSection& bucket = row_.buckets()[sent_];
    is_broken_ = true;  // until all have it
    for (int64_t w = 0; w < num_workers_; ++w) {
      if (w == worker_) continue;
      put(window_, w, bucket[static_cast<std::size_t>(w)].before, row_.packed(bucket, w), row_.packed());
    }
    is_broken_ = false;
    ++sent_;
  }
}

void GradientBuckets::put(uint64_t window, int64_t worker, int64_t offset, std::span<const std::byte> bytes,
                          const at::Tensor& memory) {
  windows_.put(window, worker, static_cast<std::size_t>(offset), {bytes, std::make_shared<at::Tensor>(memory)});
  bytes_sent_ += static_cast<int64_t>(bytes.size());
}

void GradientBuckets::progress() {
  windows_.progress();
  // A backward may round otherwise than the step. Sums that were added in other modes than the step's do not count.
  const uint32_t modes = floating_point_modes();
  if (added_ == 0) modes_ = modes;
  while (modes == modes_ && added_ < sent_ && has_arrived(added_)) {
    is_broken_ = true;  // until all have the sums
    add_and_send(added_);
    is_broken_ = false;
  }
}

bool GradientBuckets::has_arrived(std::size_t bucket) const {
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    if (windows_.arrived(window_, w) <= arrived_before_[static_cast<std::size_t>(w)] + bucket) return false;
  }
  return true;
}

void GradientBuckets::add_and_send(std::size_t bucket) {
  const RowSection& section = row_.buckets()[bucket];
  row_.add(section, 0, 1);
  ++added_;
  const std::span<const std::byte> sums = row_.sums(section, worker_);
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w != worker_) put(window_ + 1, w, section[static_cast<std::size_t>(worker_)].begin, sums, row_.sums());
  }
}

void GradientBuckets::compare(const GradientTable& gradients, int lane) {
  const auto num_lanes = static_cast<int>(sound_.size());
  std::size_t sound = sent_;
  for (std::size_t i = 0; i < variables_.size() && sound > 0; ++i) {
    if (!in_row_[i] || !is_packed_[i]) continue;
    const std::size_t first = row_.buckets_of(i).first;
    if (first >= sound) continue;
    c10::SmallVector<const void*, 16> memory;
    bool are_there = true;
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
      memory.push_back(gradients.own_leaf(i, static_cast<int64_t>(r)).memory());
      are_there = are_there && memory.back() != nullptr;
    }
    if (!are_there || !row_.has_packed(i, {memory.data(), memory.size()}, lane, num_lanes)) sound = first;
  }
  sound_[static_cast<std::size_t>(lane)] = sound;
}

std::string GradientBuckets::report() const {
  Report mine{.window = window_,
              .unused = windows_.unused(),
              .step = step_,
              .is_wanted = is_wanted_ ? 1u : 0u,
              .sent = static_cast<int64_t>(sent_)};
  std::size_t sound = *std::min_element(sound_.begin(), sound_.end());
  if (added_ > 0 && modes_ != floating_point_modes()) sound = 0;
  mine.sound = static_cast<int64_t>(sound);
  if (is_broken_) mine.window = 0;  // so that all restart
  std::string bytes;
  ByteWriter(bytes).put(mine);
  return bytes;
}

void GradientBuckets::begin_step(std::span<const std::string> reports) {
  num_sent_ = waits_.size();
  must_restart_ = false;
  next_window_ = 0;
  int64_t most = 0;
  bool all_want = true;
  for (std::size_t w = 0; w < reports.size(); ++w) {
    MessageReader reader(reports[w], static_cast<int64_t>(w), "what it has sent ahead");
    const auto one = reader.get<Report>();
    reader.expect_end();
    reader.expect(one.sound >= 0 && one.sound <= one.sent);
    must_restart_ = must_restart_ || one.window != window_ || one.step != step_ || one.window == 0;
    most = std::max(most, one.sent);
    all_want = all_want && one.is_wanted != 0;
    num_sent_ = std::min(num_sent_, static_cast<std::size_t>(one.sound));
    next_window_ = std::max(next_window_, one.unused);
    sent_by_[w] = static_cast<uint64_t>(one.sent);
  }
  if (must_restart_) num_sent_ = 0;
  const bool is_misprediction = num_sent_ < static_cast<std::size_t>(most);
  mispredictions_ = std::max(mispredictions_ + (is_misprediction ? kMisprediction : -1), 0);
  if ((all_want && mispredictions_ < kMostMispredictions) || !is_on_) return;
  is_on_ = false;
  num_sent_ = 0;
  close();
}

void GradientBuckets::restart(const std::vector<std::size_t>& in_row) {
  close();
  clear();
  in_row_.assign(variables_.size(), 0);
  for (const std::size_t i : in_row) in_row_[i] = 1;
  num_sent_ = 0;
  must_restart_ = true;
}

void GradientBuckets::send_sums() {
  while (added_ < num_sent_) {
    if (!has_arrived(added_)) {
      throw InternalError("LS-INTERNAL", fmt::format("bucket {} of {} has not arrived", added_, num_sent_),
                          "please report it, with the kinds of World that you use");
    }
    add_and_send(added_);
  }
}

void GradientBuckets::prepare() {
  if (must_restart_) open();
}

void GradientBuckets::end_step() {
  bytes_of_step_ = std::exchange(bytes_sent_, 0);
  if (std::exchange(is_new_, false)) {
    for (OfReplica& one : replicas_) std::fill(one.expected.begin(), one.expected.end(), 0);
  } else {
    ++step_;
    for (std::size_t w = 0; w < sent_by_.size(); ++w) arrived_before_[w] += sent_by_[w];
    for (OfReplica& one : replicas_) one.expected.swap(one.counted);
  }
  clear();
}

void GradientBuckets::forget_gradients() noexcept {
  // Until the next step nothing more is packed: a count that nobody reaches.
  for (std::size_t i = 0; i < variables_.size(); ++i) complete_[i].store(INT64_MIN / 2, std::memory_order_relaxed);
  for (OfReplica& one : replicas_) std::fill(one.complete.begin(), one.complete.end(), at::Tensor());
}

void GradientBuckets::clear() noexcept {
  for (OfReplica& one : replicas_) {
    std::fill(one.counted.begin(), one.counted.end(), 0);
    std::fill(one.complete.begin(), one.complete.end(), at::Tensor());
  }
  for (std::size_t i = 0; i < variables_.size(); ++i) complete_[i].store(0, std::memory_order_relaxed);
  std::fill(is_packed_.begin(), is_packed_.end(), 0);
  std::copy(variables_in_.begin(), variables_in_.end(), waits_.begin());
  sent_ = 0;
  added_ = 0;
  is_broken_ = false;
}

void GradientBuckets::open() {
  close();
  if (!is_on_ || row_.buckets().empty()) return;
  const std::size_t buckets = row_.buckets().size();
  std::vector<std::size_t> variables_in(buckets);
  for (std::size_t i = 0; i < in_row_.size(); ++i) {
    if (!in_row_[i] || variables_[i]->bytes() == 0) continue;
    const auto [first, last] = row_.buckets_of(i);
    for (std::size_t b = first; b < last; ++b) ++variables_in[b];
  }
  std::vector<std::span<std::byte>> arrived(static_cast<std::size_t>(num_workers_));
  auto owner = std::make_shared<std::vector<at::Tensor>>();
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    owner->push_back(row_.arrived(w));
    arrived[static_cast<std::size_t>(w)] = host_bytes_to_write(row_.arrived(w));
  }
  windows_.open(next_window_, std::move(arrived), std::move(owner));
  windows_.open(next_window_ + 1, std::vector(static_cast<std::size_t>(num_workers_), host_bytes_to_write(row_.sums())),
                std::make_shared<at::Tensor>(row_.sums()));
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    OfReplica& one = replicas_[r];
    one.hooks.begin(variables_, static_cast<int64_t>(r),
                    [this, &one](std::size_t i, const at::Tensor& gradient) { accumulated(one, i, gradient); });
  }
  waits_.resize(buckets);
  variables_in_ = std::move(variables_in);
  window_ = next_window_;
  step_ = 0;
  std::fill(arrived_before_.begin(), arrived_before_.end(), 0);
  is_new_ = true;
  clear();
}

void GradientBuckets::close() noexcept {
  for (OfReplica& one : replicas_) one.hooks.end();
  if (window_ == 0) return;
  windows_.close(window_);
  windows_.close(window_ + 1);
  window_ = 0;
  waits_.clear();
  variables_in_.clear();
}

}  // namespace lockstep::internal::exchange
