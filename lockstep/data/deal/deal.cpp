#include "lockstep/data/deal/deal.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/step_feed.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/data/sources/pinned_reader.h"
#include "lockstep/data/sources/sample_bytes.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep {

int64_t InputContext::get_per_replica_batch_size(int64_t global_batch) const {
  if (global_batch > 0 && global_batch % num_replicas_in_sync == 0) return global_batch / num_replicas_in_sync;
  throw UsageError(
      "LS-OPTION",
      fmt::format("a global batch of {} was to be divided among {} replicas", global_batch, num_replicas_in_sync),
      "choose a multiple of the number of replicas");
}

namespace internal::inline data {

namespace {

constexpr const char* kCall = "DistributedDataset::Iterator";
constexpr const char* kThreads = "DistributeOptions::threads";

uint64_t digest_of_id(int64_t id) { return mixed(static_cast<uint64_t>(id), 0x6c65646765720001u); }

/// One row as bytes, with its id.
std::string bytes_of_row(const Batch& row) {
  std::string bytes;
  ByteWriter(bytes).put(row.ids[0].item<int64_t>());
  return bytes += bytes_of(row);
}

Batch row_of(const std::string& bytes, int64_t worker) {
  MessageReader reader(bytes, worker, "the first row of a step");
  const auto id = reader.get<int64_t>();
  auto row = sample_of(reader.left());
  reader.expect(row.has_value());
  row->ids = ids_tensor({&id, 1});
  return std::move(*row);
}

}  // namespace

std::string LocalStep::summary() const {
  std::string bytes;
  ByteWriter to(bytes);
  to.put(samples);
  to.put(skipped);
  to.put(digest);
  to.put<uint8_t>(end ? 1 : 0);
  to.put<uint8_t>(lacks_filler ? 1 : 0);
  to.put(uint64_t{positions.size()});
  for (const lockstep::data::StreamPosition& position : positions) to.put_list(position);
  to.put_list(part_digests);
  if (like) bytes += bytes_of(no_rows(*like));
  return bytes;
}

LocalStep LocalStep::from_summary(std::string_view bytes, int64_t worker) {
  MessageReader reader(bytes, worker, "its part of a step of a data set");
  LocalStep step;
  step.samples = reader.get<int64_t>();
  step.skipped = reader.get<int64_t>();
  reader.expect(step.samples >= 0 && step.skipped >= 0);
  step.digest = reader.get<uint64_t>();
  step.end = reader.get<uint8_t>() != 0;
  step.lacks_filler = reader.get<uint8_t>() != 0;
  for (std::size_t left = reader.get_count(sizeof(uint64_t)); left > 0; --left)
    step.positions.push_back(reader.get_list<int64_t>());
  step.part_digests = reader.get_list<PartDigest>();
  step.like = sample_of(reader.left());
  return step;
}

Deal::Deal(DistributeOptions options, std::shared_ptr<ReplicaGroup> group)
    : options_(std::move(options)),
      group_(std::move(group)),
      seed_(options_.seed.value_or(group_->seed())),
      handed_out_(group_->batch_uses()) {
  reading_threads(kThreads, options_.threads, 1);
  require_limit(options_.limit);
  if (options_.prefetch && (*options_.prefetch < 0 || *options_.prefetch > 1 << 20)) {
    throw UsageError("LS-OPTION", fmt::format("distribute was given .prefetch = {}", *options_.prefetch),
                     "give a number of steps from 0");
  }
  if (options_.pin_memory) require_gpu_to_pin_for();
}

PartMaker Deal::part_maker(const lockstep::data::Cursor& at) const {
  const bool is_one = group_->num_workers() == 1;
  return {options_.collate, at.seed, at.epoch, describe(),
          is_one ? std::nullopt : std::optional<int64_t>(group_->rounds().worker_index())};
}

int64_t Deal::num_reading_threads() const {
  if (!is_parallel()) return 1;
  const LanePlan& plan = group_->plan();
  const int64_t left = plan.available_cores - int64_t{plan.num_lanes()} * plan.compute.threads;
  return std::min(reading_threads(kThreads, options_.threads, left), std::max<int64_t>(depth(), 1));
}

const Deal& deal_behind(const lockstep::data::DistributedDataset& data) {
  data.global_batch();  // throws for an empty handle
  return *static_cast<const Deal*>(data.identity());
}

std::shared_ptr<StepFeed> Deal::feed(const lockstep::data::Cursor& at, For purpose) const {
  DistributeOptions options = options_;
  if (purpose == For::kLook && options.remainder == Remainder::kDrop) options.remainder = Remainder::kKeep;
  std::unique_ptr<EpochReader> reader = open(at, options);
  if (options_.pin_memory) reader = pinned(std::move(reader));
  return std::make_shared<StepFeed>(std::move(reader), depth(), num_reading_threads(), describe());
}

LocalStep Deal::read(StepFeed& feed) const {
  const InputScope waits(group_->rounds(), options_.limit);
  return feed.next();
}

std::vector<LocalStep> Deal::agreed(StepFeed& feed, LocalStep& mine) const {
  if (!agrees()) {
    mine = read(feed);
    return {mine};
  }
  const CallScope call(*group_, kCall, "read batches between runs", Workers::kAll, options_.name);
  const Proposal proposal{.call = kCall, .name = options_.name, .step = group_->step()};
  const auto all = agree_on_call(group_->rounds(), proposal, [&](Proposal& told) {
    mine = read(feed);
    told.data = mine.summary();
  });
  std::vector<LocalStep> steps;
  for (const Proposal& one : all)
    steps.push_back(LocalStep::from_summary(one.data, static_cast<int64_t>(steps.size())));
  share_filler(mine, steps);
  return steps;
}

/// Where a replica has no row of its own, the first row of the step comes from the worker that has it: what is in a
/// part without samples must not depend on which replicas share a worker.
void Deal::share_filler(const LocalStep& mine, std::vector<LocalStep>& all) const {
  const auto first = std::find_if(all.begin(), all.end(), [](const LocalStep& one) { return one.samples > 0; });
  const bool is_lacking = std::any_of(all.begin(), all.end(), [](const LocalStep& one) { return one.lacks_filler; });
  if (!is_lacking || first == all.end()) return;
  const auto worker = static_cast<std::size_t>(first - all.begin());
  const Proposal proposal{.call = "the first row of a step", .name = options_.name, .step = group_->step()};
  const auto told = agree_on_call(group_->rounds(), proposal, [&](Proposal& own) {
    if (static_cast<std::size_t>(group_->rounds().worker_index()) == worker) own.data = bytes_of_row(*mine.filler);
  });
  first->filler = row_of(told[worker].data, static_cast<int64_t>(worker));
}

std::optional<PerReplica<Batch>> Deal::next(StepFeed& feed, lockstep::data::Cursor& behind, For purpose) const {
  LocalStep mine;
  const std::vector<LocalStep> all = agreed(feed, mine);
  const bool over = std::all_of(all.begin(), all.end(), [](const LocalStep& one) { return one.end; });
  if (over) return std::nullopt;
  if (mine.global_size < 0) {
    mine.global_size = 0;
    for (const LocalStep& one : all) mine.global_size += one.samples;
  }
  // Shapes may differ from step to step: those of the first rows of this one do not depend on who holds them.
  const auto known = std::find_if(all.begin(), all.end(), [](const LocalStep& one) { return one.samples > 0; });
  if (known != all.end() && known->like) mine.like = known->like;
  for (const LocalStep& one : all) {
    if (!mine.like) mine.like = one.like;
  }
  merge(mine, all, behind);
  if (mine.end) return std::nullopt;
  const std::string origin = origin_of(behind, mine.behind);
  for (Batch& part : mine.parts) {
    if (!part.input.defined() && mine.like) part = no_rows(*mine.like);
    if (!part.ids.defined()) part.ids = ids_tensor({});
    // A batch is known by this memory, which an element of a stream may share with other batches.
    if (part.ids.storage().use_count() > 1) part.ids = part.ids.clone();
    part.global_size = mine.global_size;
    part.origin = origin;
  }
  if (is_watched()) watch(all, behind.epoch, purpose);
  int64_t skipped = 0;
  for (const LocalStep& one : all) skipped = agrees() && mine.digest != 0 ? one.skipped : skipped + one.skipped;
  PerReplica<Batch> step(std::move(mine.parts), group_->first_replica());
  count_skipped(feed.newly_skipped(skipped));
  if (purpose == For::kUse) note(step, behind, mine.behind);
  behind = std::move(mine.behind);
  return step;
}

std::string Deal::origin_of(const lockstep::data::Cursor& before, const lockstep::data::Cursor& behind) const {
  if (group_->num_workers() == 1) return {};
  if (!is_one_order()) return "samples that each worker deals by itself";
  std::string data = options_.name.empty() ? "" : fmt::format(" of '{}'", options_.name);
  if (behind.stream.empty()) {
    const lockstep::data::Cursor begin = begin_of(before.epoch);  // a cursor of seek() may know less
    data += fmt::format(" ({}{}{})", counted(begin.size, "sample"),
                        begin.shuffle ? fmt::format(" by seed {}", begin.seed) : "",
                        begin.digest == 0 ? "" : fmt::format(", digest {:016x}", begin.digest));
  }
  return fmt::format("samples at {} to {} of epoch {}{}", before.position, behind.position - 1, before.epoch, data);
}

/// Replicas that read the same, and an epoch that repeats the one before, are probably mistakes.
void Deal::watch(const std::vector<LocalStep>& all, int64_t epoch, For purpose) const {
  std::vector<PartDigest> parts;
  for (const LocalStep& one : all) parts.insert(parts.end(), one.part_digests.begin(), one.part_digests.end());
  if (parts.empty()) return;
  report_repeated_input(group_->findings(), options_.name, group_->step(), parts);
  if (!watches_order() || purpose == For::kLook) return;  // who looks again sees the same again
  uint64_t first = 0;
  for (const PartDigest& part : parts) first = mixed(mixed(first, part.digest), static_cast<uint64_t>(part.rows));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_first_ && last_first_->second == first && last_first_->first != epoch) {
    group_->findings().add("LS-INPUT-REPEATS", options_.name, group_->step(), [&] {
      return fmt::format(
          "epoch {} begins with the same samples in the same order as epoch {}: shuffle the data set, or pass it to "
          "strategy.distribute with .shuffle = true",
          epoch, last_first_->first);
    });
  }
  last_first_ = {epoch, first};
}

void Deal::note(const PerReplica<Batch>& step, const lockstep::data::Cursor& before,
                const lockstep::data::Cursor& behind) const {
  lockstep::data::LedgerEntry used{.epoch = behind.epoch, .steps = 1};
  int64_t replica = step.first_replica().value();
  for (const Batch& part : step) {
    const at::Tensor ids = part.ids.contiguous();
    uint64_t order = mixed(static_cast<uint64_t>(before.position), static_cast<uint64_t>(replica++));
    for (int64_t i = 0; i < part.samples(); ++i) {
      const int64_t id = ids.data_ptr<int64_t>()[i];
      used.ids += digest_of_id(id);
      order = mixed(order, static_cast<uint64_t>(id));
    }
    used.samples += part.samples();
    used.order += order;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  handed_out_.give(step, before, behind, used);
}

void Deal::count_skipped(int64_t count) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  skipped_ += count;
}

std::optional<lockstep::data::Cursor> Deal::start_of(int64_t epoch) const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (start_ && epoch < start_->epoch) return std::nullopt;
    if (start_ && epoch == start_->epoch) return start_;
  }
  return begin_of(epoch);
}

lockstep::data::Cursor Deal::cursor() const {
  lockstep::data::Cursor present = begin_of(0);
  HandedOut::Place place;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    place = handed_out_.place();
  }
  report(place.doubt);
  return std::move(place.cursor).value_or(std::move(present));
}

void Deal::pass(const PerReplica<Batch>& step) const {
  const auto doubt = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return handed_out_.pass(step);
  }();
  report(doubt);
}

void Deal::use_all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  handed_out_.use_all();
}

void Deal::report(HandedOut::Doubt doubt) const {
  if (doubt == HandedOut::Doubt::kNone) return;
  group_->findings().add("LS-BATCH-HELD", options_.name, group_->step(), [&] {
    const std::string data = options_.name.empty() ? describe() : fmt::format("'{}'", options_.name);
    return fmt::format(
        "step {}: a cursor of {} was taken while the loop held a batch that no run was given, and {}; pass batches to "
        "run() as arguments, or call used() on the data set when they were used",
        group_->step(), data,
        doubt == HandedOut::Doubt::kHeld
            ? "it counts as used, because batches before it went by without a run, or nothing is trained by run()"
            : "the loop went on without one, so that who continues at that cursor gets that batch again");
  });
}

void Deal::seek(const lockstep::data::Cursor& cursor) const {
  check(cursor);
  if (cursor.seed != seed_) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("the cursor is of seed {}, and the data set has seed {}", cursor.seed, seed_),
                     "distribute the data set with the .seed that the cursor came from");
  }
  if (cursor.shuffle != options_.shuffle) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("the cursor is of a data set with .shuffle = {}, and this one has {}", cursor.shuffle,
                                 options_.shuffle),
                     "distribute the data set with the .shuffle that the cursor came from");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  start_ = cursor;
  handed_out_.seek(cursor);
}

void Deal::forget_seek() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  start_.reset();
}

int64_t Deal::skipped() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return skipped_;
}

std::vector<lockstep::data::LedgerEntry> Deal::ledger() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return handed_out_.ledger();
}

}  // namespace internal::data

namespace data {

LedgerEntry LedgerEntry::operator+(const LedgerEntry& other) const {
  return {epoch, steps + other.steps, samples + other.samples, ids + other.ids, order + other.order};
}

bool LedgerEntry::has_each_once(int64_t size) const {
  uint64_t sum = 0;
  for (int64_t id = 0; id < size; ++id) sum += internal::digest_of_id(id);
  return samples == size && ids == sum;
}

}  // namespace data
}  // namespace lockstep
