#include "lockstep/variable/module/module_buffers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/layers/norm_layers.h"
#include "lockstep/reduce/across_replicas.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/on_read_state.h"
#include "lockstep/variable/module/module_binding.h"
#include "lockstep/variable/module/module_tensors.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/values.h"

namespace lockstep::internal::inline variable {

std::string_view name_of(Buffers buffers) {
  switch (buffers) {
    case Buffers::kAuto: return "kAuto";
    case Buffers::kMean: return "kMean";
    case Buffers::kFirstReplica: return "kFirstReplica";
    case Buffers::kSum: return "kSum";
    case Buffers::kEqual: return "kEqual";
  }
  return "unknown";
}

namespace {

using Tensors = std::vector<at::Tensor>;

/// What the replicas of one worker have of a buffer.
struct BufferRecord {
  uint64_t name = 0;
  uint64_t readable = 1;  // whether they are dense and in the host's memory
  uint64_t shape = 0;     // of dtype and sizes; 0 where its replicas' differ in them
  uint64_t first = 0;     // of its first replica's values
  int64_t other = -1;     // its first replica that has other values than its first one
  uint64_t moved = 0;     // whether this run has moved it on one of its replicas
};

/// What the replicas of all workers have of a buffer.
struct Spread {
  bool everywhere = true;  // all workers have it and can read it: otherwise nothing can be done with it
  bool alike = true;       // all replicas' have one dtype and shape
  bool moved = false;      // this run has moved it on some replica
  int64_t other = -1;      // the first replica whose values are not replica 0's

  bool differs() const { return everywhere && other >= 0; }
};

uint64_t word_of_text(const std::string& text) { return Digest().with(text).value(); }

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

BufferRecord record_of(const ReplicaGroup& group, const OnReadState& buffer) {
  BufferRecord record;
  const bool in_workers = group.num_workers() > 1;
  if (in_workers) record.name = word_of_text(buffer.name());
  for (int64_t r = 0; r < buffer.num_components(); ++r) {
    if (!unsuited(buffer.component(r)).fits()) record.readable = 0;  // a step has moved it to another device
  }
  if (record.readable == 0) return record;
  const at::Tensor first = plain_and_contiguous(buffer.component(0));
  bool alike = true;
  for (int64_t r = 0; r < buffer.num_components(); ++r) {
    const at::Tensor& own = buffer.component(r);
    alike = alike && same_form(own, first);
    if (record.other < 0 && !same_bits(first, own)) record.other = group.first_replica() + r;
    if (!buffer.has_moved(r)) continue;
    record.moved = 1;
    // What was added to it is known only where it has kept its form.
    if (buffer.buffers() == Buffers::kSum) alike = alike && same_form(buffer.before_run(r), own);
  }
  const uint64_t form = in_workers ? word_of_text(shape_text(first)) : 0;
  record.first = form;
  if (alike) record.shape = form | 1;
  if (in_workers && first.nbytes() > 0)
    record.first = XXH3_64bits_withSeed(host_bytes(first).data(), first.nbytes(), form);
  return record;
}

/// The same buffer's spread, from the records of it that workers have sent, by worker.
Spread spread_of(const std::vector<const BufferRecord*>& by_worker, const std::vector<int64_t>& first_replicas) {
  Spread spread;
  for (std::size_t w = 0; w < by_worker.size(); ++w) {
    const BufferRecord* const one = by_worker[w];
    if (!one || !by_worker.front() || one->readable == 0) return {.everywhere = false};
    spread.moved = spread.moved || one->moved != 0;
    spread.alike = spread.alike && one->shape != 0 && one->shape == by_worker.front()->shape;
    if (spread.other >= 0) continue;
    spread.other = one->first != by_worker.front()->first ? first_replicas[w] : one->other;
  }
  return spread;
}

/// Compares what all replicas have of each buffer. A call of all workers.
std::vector<Spread> spreads_of(const ReplicaGroup& group, std::span<const OnReadState* const> buffers) {
  std::vector<BufferRecord> mine;
  for (const OnReadState* buffer : buffers) mine.push_back(record_of(group, *buffer));
  std::vector<Spread> spreads;
  if (group.num_workers() == 1) {
    for (const BufferRecord& one : mine) spreads.push_back(spread_of({&one}, {0}));
    return spreads;
  }
  const auto fill_in = [&](Proposal& proposal) { ByteWriter(proposal.data).put_all(mine); };
  const auto all = agree_on_call(group.rounds(), {.call = "a comparison of buffers", .step = group.step()}, fill_in);
  std::vector<std::map<uint64_t, BufferRecord>> sent(all.size());
  std::vector<int64_t> first_replicas;
  for (std::size_t w = 0; w < all.size(); ++w) {
    MessageReader reader(all[w].data, static_cast<int64_t>(w), "what it has of its buffers");
    for (const auto& one : reader.get_rest<BufferRecord>()) sent[w].emplace(one.name, one);
    first_replicas.push_back(block_of(group.num_replicas(), group.num_workers(), static_cast<int64_t>(w)).first);
  }
  for (const BufferRecord& own : mine) {
    std::vector<const BufferRecord*> by_worker;
    for (const auto& of_worker : sent) {
      const auto found = of_worker.find(own.name);
      by_worker.push_back(found == of_worker.end() ? nullptr : &found->second);
    }
    spreads.push_back(spread_of(by_worker, first_replicas));
  }
  return spreads;
}

/// The bytes of several tensors in one, which travels at once.
at::Tensor packed(const Tensors& tensors) {
  int64_t size = 0;
  for (const at::Tensor& one : tensors) size += static_cast<int64_t>(one.nbytes());
  at::Tensor bytes = at::empty({size}, at::kByte);
  std::byte* to = host_bytes_to_write(bytes).data();
  for (const at::Tensor& one : tensors) to = std::ranges::copy(host_bytes(plain_and_contiguous(one)), to).out;
  return bytes;
}

/// The tensors that packed() made `bytes` of, which have dtypes and shapes as `like` has.
Tensors unpacked(const at::Tensor& bytes, const Tensors& like) {
  Tensors tensors;
  std::span<const std::byte> left = host_bytes(bytes);
  for (const at::Tensor& one : like) {
    at::Tensor own = at::empty(one.sizes(), one.scalar_type());
    std::ranges::copy(left.first(own.nbytes()), host_bytes_to_write(own).begin());
    left = left.subspan(own.nbytes());
    tensors.push_back(std::move(own));
  }
  return tensors;
}

/// All replicas' tensors, of each item: `mine[i][r]` is local replica r's of item i; an item's have one dtype and
/// shape.
std::vector<Tensors> of_all_replicas(const ReplicaGroup& group, const std::vector<Tensors>& mine) {
  if (group.num_workers() == 1 || mine.empty()) return mine;
  Tensors like;
  for (const Tensors& item : mine) like.push_back(item.front());
  Tensors bytes;
  for (std::size_t r = 0; r < mine.front().size(); ++r) {
    Tensors own;
    for (const Tensors& item : mine) own.push_back(item[r]);
    bytes.push_back(packed(own));
  }
  std::vector<Tensors> all(mine.size());
  for (const at::Tensor& one : group.of_all_replicas(bytes)) {
    const Tensors values = unpacked(one, like);
    for (std::size_t i = 0; i < values.size(); ++i) all[i].push_back(values[i]);
  }
  return all;
}

Tensors components_of(const OnReadState& buffer) {
  Tensors values;
  for (int64_t r = 0; r < buffer.num_components(); ++r) values.push_back(plain(buffer.component(r)));
  return values;
}

/// What a run found, and what each replica has added to it. Replicas that have added nothing do not count, so that the
/// bits of a single one's value stay.
at::Tensor summed(const Tensors& before, const Tensors& now) {
  std::vector<std::size_t> moved;
  bool one_value = true;  // before
  for (std::size_t r = 0; r < now.size(); ++r) {
    if (!same_bits(before[r], now[r])) moved.push_back(r);
    one_value = one_value && same_bits(before[r], before.front());
  }
  if (moved.size() == 1 && one_value) return now[moved.front()];
  const at::ScalarType type = now.front().scalar_type();
  at::ScalarType wide = at::kLong;
  if (at::isFloatingType(type)) wide = at::kDouble;
  if (at::isComplexType(type)) wide = at::kComplexDouble;
  at::Tensor sum = before.front().to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (const std::size_t r : moved) sum.add_(now[r].to(wide) - before[r].to(wide));
  return sum.to(type);
}

/// Throws what require_equal_on_replicas() throws.
void require_equal(const ReplicaGroup& group, const OnReadState& buffer, const Spread& spread) {
  if (!spread.differs()) return;
  const int64_t workers = group.num_workers();
  const int64_t worker = part_that_has(group.num_replicas(), workers, spread.other);
  throw DivergenceError(
      "LS-BUFFERS-DIFFER",
      fmt::format(
          "buffer '{}', which replicas must keep equal (Buffers::kEqual), has other values on replica {}{} than "
          "on replica 0",
          buffer.name(), spread.other, workers == 1 ? "" : fmt::format(", of worker {},", worker)),
      "move it by what all replicas have: SyncBatchNorm for batch normalisation, ctx.all_reduce in your own forward; "
      "or "
      "choose another ModuleOptions::buffers: kMean, kFirstReplica or kSum");
}

[[noreturn]] void throw_unlike(const OnReadState& buffer) {
  throw UsageError(
      "LS-NOT-ALIKE",
      fmt::format("buffer '{}', of which all replicas' changes are added (Buffers::kSum), has another dtype "
                  "or shape than as the run began, or on some replica",
                  buffer.name()),
      "keep its shape, or choose another ModuleOptions::buffers");
}

/// The first, second, fourth run and so on, and then each 128th: often enough for what happens in every run, and too
/// seldom to be measured.
bool is_looked_at(int64_t run) { return (run & (run - 1)) == 0 || run % 128 == 0; }

template <class Wanted>
std::vector<OnReadState*> buffers_of(const ModuleBuffers::Modules& modules, const Wanted& is_wanted) {
  std::vector<OnReadState*> buffers;
  for (const auto& module : modules) {
    for (const Variable& one : module->variables()) {
      VariableState& state = one.state();
      if (state.on_write() || state.is_trained_locally() || !is_wanted(state.buffers())) continue;
      buffers.push_back(&state.as_on_read());
    }
  }
  return buffers;
}

}  // namespace

void require_equal_on_replicas(const ReplicaGroup& group, std::span<const OnReadState* const> buffers) {
  const std::vector<Spread> spreads = spreads_of(group, buffers);
  for (std::size_t i = 0; i < buffers.size(); ++i) require_equal(group, *buffers[i], spreads[i]);
}

void LentBuffers::give(int64_t r) const {
  for (const auto& [buffer, value] : values_) buffer->write_component(r, value);
}

void LentBuffers::take_back(int64_t r) const {
  for (const auto& [buffer, value] : values_) {
    if (same_bits(buffer->component(r), value)) buffer->restore_component(r);
  }
}

void ModuleBuffers::note(const ModuleBinding& module) {
  for (const Variable& one : module.variables()) {
    if (one.state().on_write() || one.state().is_trained_locally()) continue;
    has_buffers_ = true;
    has_settled_ = has_settled_ || are_settled(one.state().buffers());
    has_auto_ = has_auto_ || one.state().buffers() == Buffers::kAuto;
  }
}

void ModuleBuffers::settle(const Modules& modules, bool evaluates) {
  if (group_->num_replicas() == 1 || !has_buffers_) return;
  const bool looks = !evaluates && has_auto_ && is_looked_at(++runs_);
  if (!has_settled_ && !looks) return;
  const ComputeSettingsGuard settings(group_->plan().compute);
  const at::NoGradGuard no_grad;
  const std::vector<OnReadState*> buffers =
      buffers_of(modules, [&](Buffers chosen) { return are_settled(chosen) || (looks && chosen == Buffers::kAuto); });
  const std::vector<Spread> spreads = spreads_of(*group_, buffers);
  std::vector<OnReadState*> added;
  std::vector<OnReadState*> from_first;
  std::vector<OnReadState*> from_first_unlike;
  std::vector<std::pair<const OnReadState*, int64_t>> apart;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    OnReadState* const buffer = buffers[i];
    const Spread& spread = spreads[i];
    if (!spread.everywhere) continue;
    if (buffer->buffers() == Buffers::kAuto) {
      if (spread.differs() && spread.moved) apart.emplace_back(buffer, spread.other);
    } else if (buffer->buffers() == Buffers::kEqual) {
      require_equal(*group_, *buffer, spread);
    } else if (buffer->buffers() == Buffers::kSum && can_be_added(buffer->like().scalar_type())) {
      if (!spread.moved && !spread.differs()) continue;
      if (!spread.alike) throw_unlike(*buffer);
      added.push_back(buffer);
    } else if (spread.differs()) {
      (spread.alike ? from_first : from_first_unlike).push_back(buffer);
    }
  }
  // From here on all workers exchange the same.
  std::vector<std::pair<OnReadState*, at::Tensor>> values;
  if (!from_first.empty()) {
    Tensors own;
    for (const OnReadState* buffer : from_first) own.push_back(plain(buffer->component(0)));
    const at::Tensor bytes = packed(own);
    const Tensors firsts = unpacked(group_->of_replica(0, bytes), own);
    for (std::size_t i = 0; i < firsts.size(); ++i) values.emplace_back(from_first[i], firsts[i]);
  }
  for (OnReadState* buffer : from_first_unlike) {
    values.emplace_back(buffer, copied(group_->of_replica(0, plain(buffer->component(0)))));
  }
  std::vector<Tensors> mine;  // of each buffer what its run found, and then what it is now
  for (const OnReadState* buffer : added) {
    Tensors& before = mine.emplace_back();
    for (int64_t r = 0; r < buffer->num_components(); ++r) before.push_back(buffer->before_run(r));
    mine.push_back(components_of(*buffer));
  }
  const std::vector<Tensors> all = of_all_replicas(*group_, mine);
  for (std::size_t i = 0; i < added.size(); ++i) values.emplace_back(added[i], summed(all[2 * i], all[2 * i + 1]));
  for (const auto& [buffer, value] : values) buffer->write(value);
  tell(modules, apart);
}

LentBuffers ModuleBuffers::lend(const Modules& modules) const {
  if (group_->num_replicas() == 1 || !has_buffers_) return {};
  const ComputeSettingsGuard settings(group_->plan().compute);
  const at::NoGradGuard no_grad;
  const std::vector<OnReadState*> buffers = buffers_of(modules, [](Buffers /*chosen*/) { return true; });
  const std::vector<Spread> spreads = spreads_of(*group_, buffers);
  std::vector<OnReadState*> differing;
  std::vector<Tensors> mine;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i]->buffers() == Buffers::kEqual) require_equal(*group_, *buffers[i], spreads[i]);
    if (!spreads[i].differs() || !spreads[i].alike) continue;
    differing.push_back(buffers[i]);
    mine.push_back(components_of(*buffers[i]));
  }
  const std::vector<Tensors> all = of_all_replicas(*group_, mine);
  std::vector<std::pair<OnReadState*, at::Tensor>> values;
  for (std::size_t i = 0; i < differing.size(); ++i) {
    const bool is_mean = differing[i]->options().aggregation == VariableAggregation::kMean;
    values.emplace_back(differing[i],
                        is_mean ? reading_of(group_->reducer(), Reduction::kMean, all[i]) : copied(all[i].front()));
  }
  return LentBuffers(std::move(values));
}

void ModuleBuffers::tell(const Modules& modules, const std::vector<std::pair<const OnReadState*, int64_t>>& apart) {
  if (apart.empty()) return;
  struct Layers {
    std::string what;  // the first one's buffer and the layer
    int64_t other = 0;
    std::set<std::string> paths;
  };
  for (const auto& module : modules) {
    Layers norms;
    Layers others;
    for (const auto& [buffer, other] : apart) {
      const auto& all = module->variables();
      const bool is_here =
          std::any_of(all.begin(), all.end(), [&](const Variable& one) { return &one.state() == buffer; });
      if (!is_here) continue;
      const std::string in_module = buffer->name().substr(module->name().size() + 1);
      const auto [owner, path] = owner_of(module->first_module(), in_module);
      Layers& layers = is_batch_norm(*owner) ? norms : others;
      layers.paths.insert(path);
      if (!layers.what.empty()) continue;
      layers.what =
          fmt::format("'{}' of {} ({})", in_module.substr(in_module.rfind('.') + 1),
                      path.empty() ? "the module itself" : fmt::format("layer '{}'", path), type_of_module(*owner));
      layers.other = other;
    }
    for (const Layers* layers : {&norms, &others}) {
      const std::string subject = module->name() + (layers == &norms ? " norms" : " buffers");
      if (layers->paths.empty() || !told_.insert(subject).second) continue;
      const auto more = static_cast<int64_t>(layers->paths.size()) - 1;
      const int64_t step = group_->step();
      group_->findings().add("LS-BUFFERS-DIFFER", subject, step, [&] {
        return fmt::format(
            "module '{}': each of {} replicas moves {}{} by its part of the batch alone; at the end of step {} replica "
            "{} has other values than replica 0: {}",
            module->name(), group_->num_replicas(), layers->what,
            more == 0 ? "" : fmt::format(", and buffers of {},", counted(more, "other layer")), step, layers->other,
            layers == &norms
                ? "normalize by the whole batch with SyncBatchNorm, which convert_batch_norm(module) in the factory "
                  "makes of it; or choose what evaluate() and an exported module have, which is now their mean: "
                  "ModuleOptions::buffers"
                : "choose what evaluate() and an exported module have, which is now their mean, with which no replica "
                  "trains: ModuleOptions::buffers; or move it by what ctx.all_reduce gives of all parts");
      });
    }
  }
}

}  // namespace lockstep::internal::variable
