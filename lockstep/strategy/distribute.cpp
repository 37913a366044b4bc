// What a strategy gives its replicas to work on: data sets and streams, whole tensors, and a look at batches of the
// program's own.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/data/stages/repeated_input.h"
#include "lockstep/data/stages/split.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/kinds/waiting_values.h"
#include "lockstep/variable/registry.h"

namespace lockstep {

using internal::CallScope;

void Strategy::require_free_name(const DistributeOptions& options) const {
  const auto same = named_data_sets_.find(options.name);
  if (same == named_data_sets_.end() || same->second.expired()) return;
  throw UsageError("LS-NAME-TAKEN", fmt::format("a second data set named '{}' was asked for", options.name),
                   "give each a name of its own; a data set lives as long as its handles, iterators and state items");
}

namespace {

/// What has to be equal on all workers, or tasks: otherwise each deals by a plan of its own, and samples are lost or
/// used twice. With Sharding::kOff each worker has an order of its own. A stream's files may lie elsewhere on each
/// worker.
std::string plan_text(const internal::Deal& deal, bool is_stream) {
  constexpr std::array<std::string_view, 3> kRemainders{"keep", "drop", "pad"};
  constexpr std::array<std::string_view, 4> kShardings{"auto", "file", "data", "off"};
  const DistributeOptions& options = deal.options();
  const bool is_one_plan = options.sharding != Sharding::kOff;
  std::string data = is_stream ? "a stream" : "a data set";
  if (is_one_plan && !is_stream) {
    const data::Cursor begin = deal.begin_of(0);
    data = internal::counted(begin.size, "sample");
    if (begin.digest != 0) data += fmt::format(" of the digest {:016x}", begin.digest);
  }
  return fmt::format("distribute({}, .global_batch = {}, .shuffle = {}{}, .remainder = {}, .sharding = {}{}{})", data,
                     options.global_batch, options.shuffle, is_one_plan ? fmt::format(", .seed = {}", deal.seed()) : "",
                     kRemainders.at(static_cast<std::size_t>(options.remainder)),
                     kShardings.at(static_cast<std::size_t>(options.sharding)),
                     fmt::format("{}{}", options.on_error == OnError::kSkip ? ", .on_error = skip" : "",
                                 options.collate ? ", .collate" : ""),
                     options.name.empty() ? "" : fmt::format(", .name = '{}'", options.name));
}

}  // namespace

DistributedDataset Strategy::deal(std::shared_ptr<const internal::Deal> deal, bool is_stream) const {
  const std::string name = deal->options().name;
  if (!name.empty()) named_data_sets_[name] = deal;
  std::erase_if(data_sets_, [](const auto& one) { return one.first.expired(); });
  data_sets_.emplace_back(deal, plan_text(*deal, is_stream));
  DistributedDataset dealt(std::move(deal));
  if (const auto waiting = registry_->waiting(); waiting && !name.empty()) waiting->give_to_items(state_items());
  return dealt;
}

namespace {

/// Makes the deal, and compares it with those of the other workers where the call is one of all workers.
template <class Make>
std::shared_ptr<const internal::Deal> agreed_deal(const CallScope& scope, internal::ReplicaGroup& group, bool is_stream,
                                                  std::chrono::milliseconds limit, const Make& make) {
  if (!scope.is_agreed()) return make();
  std::shared_ptr<const internal::Deal> made;
  agree_on_call(group.rounds(), {.call = "Strategy::distribute", .step = group.step()}, [&](internal::Proposal& mine) {
    const internal::WorkScope work(group.rounds(), WorkerPhase::Kind::kFunction, group.step(), limit);
    made = make();
    mine.detail = mine.name = plan_text(*made, is_stream);
  });
  return made;
}

}  // namespace

DistributedDataset Strategy::distribute(const Dataset& dataset, DistributeOptions options) const {
  const CallScope call(*group_, "Strategy::distribute", "distribute the data set before run()");
  return deal(agreed_deal(call, *group_, false, options.limit,
                          [&] {
                            require_free_name(options);
                            return internal::deal_of(dataset, std::move(options), group_);
                          }),
              false);
}

DistributedDataset Strategy::distribute(const Stream& stream, DistributeOptions options) const {
  const CallScope call(*group_, "Strategy::distribute", "distribute the stream before run()");
  return deal(agreed_deal(call, *group_, true, options.limit,
                          [&] {
                            require_free_name(options);
                            return internal::deal_of(stream, std::move(options), group_, false);
                          }),
              true);
}

DistributedDataset Strategy::distribute_own(const Stream& stream, DistributeOptions options) const {
  const CallScope call(*group_, "Strategy::distribute_from_function", "call it before run()", internal::Workers::kThis);
  require_free_name(options);
  return deal(internal::deal_of(stream, std::move(options), group_, true), true);
}

InputContext Strategy::input_context() const {
  return {num_workers(), worker_index(), num_replicas(), num_local_replicas(), first_replica()};
}

namespace {

PerReplica<Batch> split_named(const std::vector<internal::NamedTensor>& tensors, const SplitOptions& options,
                              internal::ReplicaGroup& group) {
  const CallScope call(group, "Strategy::split", "split the tensors before run()", internal::Workers::kThis);
  return internal::split(tensors, options, group.num_replicas(), group.first_replica(), group.num_local_replicas());
}

}  // namespace

PerReplica<Batch> Strategy::split(const at::Tensor& input, const at::Tensor& target,
                                  const SplitOptions& options) const {
  const at::Tensor tensors[] = {input, target};
  return split_named(internal::named(std::span(tensors, target.defined() ? 2 : 1)), options, *group_);
}

PerReplica<Batch> Strategy::split(const std::map<std::string, at::Tensor>& tensors, const SplitOptions& options) const {
  return split_named(internal::named(tensors), options, *group_);
}

PerReplica<Batch> Strategy::split(const std::vector<at::Tensor>& tensors, const SplitOptions& options) const {
  return split_named(internal::named(tensors), options, *group_);
}

PerReplica<Batch> Strategy::split(std::initializer_list<at::Tensor> tensors, const SplitOptions& options) const {
  return split_named(internal::named(std::span(tensors.begin(), tensors.size())), options, *group_);
}

namespace {

/// What a batch of the program's own holds. Rows that are all alike say nothing, and neither does what LibTorch cannot
/// compare or copy, such as nested tensors.
internal::PartDigest digest_of_part(const Batch& part) try {
  const at::Tensor& rows = part.input;
  const bool is_plain = rows.defined() && rows.dim() > 0 && rows.device().is_cpu() && rows.layout() == at::kStrided &&
                        !rows.is_quantized();
  if (!is_plain || rows.size(0) < 2) return {};
  const int64_t all_but_one = rows.size(0) - 1;
  if (at::equal(rows.narrow(0, 1, all_but_one), rows.narrow(0, 0, all_but_one))) return {};
  return {internal::mixed(internal::digest_of(rows), internal::digest_of(part.ids)), part.size()};
} catch (const c10::Error&) {
  return {};
}

}  // namespace

void Strategy::watch(const PerReplica<Batch>& batches) {
  const at::NoGradGuard no_grad;
  std::vector<internal::PartDigest> parts;
  const auto add_own = [&] {
    for (const Batch& part : batches) parts.push_back(digest_of_part(part));
  };
  // Batches with an origin were dealt, and run itself compares how.
  if (num_workers() > 1 && batches.begin()->origin.empty()) {
    const CallScope call(*group_, "Strategy::run", "do the work in the step itself: runs do not nest",
                         internal::Workers::kAll, internal::kOwnBatches);
    call.require_outermost();
    const auto all =
        internal::agree_on_call(group_->rounds(), {.call = "Strategy::run", .name = "first batches", .step = step()},
                                [&](internal::Proposal& mine) {
                                  add_own();
                                  mine.data = bytes_of(std::exchange(parts, {}));
                                });
    for (std::size_t w = 0; w < all.size(); ++w) {
      const auto theirs = internal::parts_of(all[w].data, static_cast<int64_t>(w));
      parts.insert(parts.end(), theirs.begin(), theirs.end());
    }
  } else {
    parts.resize(static_cast<std::size_t>(first_replica().value()));  // others' say nothing here
    add_own();
  }
  internal::report_repeated_input(group_->findings(), "run", step(), parts);
}

}  // namespace lockstep
