#include "lockstep/server/remote/shared_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "lockstep/checkpoint/content_checksum.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/remote/tensor_bytes.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

using Kind = StateItem::Kind;

/// What tasks tell each other: not where each reads its data, nor what is a function of the program, nor variables that
/// the chief alone has, because they were made inside coordinate() or by callbacks of a Trainer.
bool is_shared(const StateItem& item, const Catalog& catalog) {
  if (item.kind == Kind::kMirrored || item.kind == Kind::kOnRead) return catalog.has_variable(item.name);
  if (item.kind == Kind::kCursor || item.kind == Kind::kRule || item.name == "seed") return false;
  return item.kind != Kind::kOption || item.name.find("/has_schedule/") == std::string::npos;
}

std::string digest_of(const std::vector<at::Tensor>& values) {
  ContentChecksum checksum;
  for (const at::Tensor& value : values) {
    std::string head;
    ByteWriter to(head);
    to.put(static_cast<int8_t>(value.scalar_type()));
    to.put_list(value.sizes().vec());
    checksum.add(std::as_bytes(std::span(head)));
    const at::Tensor dense = value.contiguous();
    checksum.add(host_bytes(dense));
  }
  return checksum.digits();
}

std::vector<at::Tensor> values_of(const StateItem& item) { return item.view ? item.view() : item.read(); }

void put_rows(std::string& bytes, const SavedRows& rows) {
  for (const at::Tensor* one : {&rows.ids, &rows.positions, &rows.weights, &rows.updates}) put(bytes, *one);
  ByteWriter(bytes).put(uint64_t{rows.slots.size()});
  for (const auto& [name, values] : rows.slots) {
    ByteWriter(bytes).put_text(name);
    put(bytes, values);
  }
}

SavedRows get_rows(MessageReader& from) {
  SavedRows rows;
  for (at::Tensor* one : {&rows.ids, &rows.positions, &rows.weights, &rows.updates}) *one = get_tensor(from);
  for (std::size_t left = from.get_count(sizeof(uint64_t)); left > 0; --left) {
    std::string name(from.get_text());
    rows.slots[std::move(name)] = get_tensor(from);
  }
  return rows;
}

}  // namespace

std::map<SharedState::Key, const VariableState*> SharedState::cut_items() const {
  std::map<Key, const VariableState*> all;
  for (const Variable& one : catalog_.variables()) {
    if (catalog_.is_cut(one.state())) all[{Kind::kMirrored, one.name()}] = &one.state();
  }
  if (all.empty()) return all;
  for (const Optimizer& one : StrategyAccess::optimizers(strategy_)) {
    const OptimizerState& optimizer = one.shared_state();
    auto slot = optimizer.slots().begin();  // in the order of the variables
    for (std::size_t i = 0; i < optimizer.variables().size(); ++i) {
      const VariableState& variable = *optimizer.variables()[i];
      for (std::size_t left = optimizer.counts().rule_of(i).slots().size(); left > 0; --left, ++slot) {
        if (catalog_.is_cut(variable)) all[{Kind::kSlot, slot->name()}] = &variable;
      }
    }
  }
  return all;
}

std::string SharedState::changes() {
  const at::NoGradGuard no_grad;
  const std::map<Key, const VariableState*> cut = server_ < 0 ? std::map<Key, const VariableState*>() : cut_items();
  std::string bytes;
  uint64_t count = 0;
  ByteWriter to(bytes);
  to.put(count);
  for (const StateItem& item : strategy_.state_items()) {
    if (!is_shared(item, catalog_)) continue;
    std::vector<at::Tensor> values = values_of(item);
    if (const auto found = cut.find({item.kind, item.name}); found != cut.end()) {
      const VariablePart* const part = catalog_.part_on(server_, *found->second);
      if (part == nullptr) continue;
      values = {part_of(values.front(), *part)};
    }
    std::string digest = digest_of(values);
    std::string& known = digests_[{item.kind, item.name}];
    if (known == digest) continue;
    known = std::move(digest);
    to.put(static_cast<uint8_t>(item.kind));
    to.put_text(item.name);
    to.put(uint64_t{values.size()});
    for (const at::Tensor& value : values) put(bytes, value);
    ++count;
  }
  std::memcpy(bytes.data(), &count, sizeof count);
  put_tables(bytes);
  return bytes;
}

void SharedState::take(std::string_view bytes, int32_t of) {
  const at::NoGradGuard no_grad;
  const std::map<Key, const VariableState*> cut = cut_items();
  MessageReader from(bytes, -1, "the state of a parameter server");
  std::map<Key, StateItem> items;
  for (StateItem& item : strategy_.state_items()) {
    if (is_shared(item, catalog_)) items.emplace(Key(item.kind, item.name), std::move(item));
  }
  for (std::size_t left = from.get_count(1 + 2 * sizeof(uint64_t)); left > 0; --left) {
    const auto kind = from.get<uint8_t>();
    from.expect(kind <= static_cast<uint8_t>(Kind::kRule));
    const Key key(static_cast<Kind>(kind), from.get_text());
    std::vector<at::Tensor> values;
    for (std::size_t one = from.get_count(1); one > 0; --one) {
      values.push_back(get_tensor(from));
      from.expect(values.back().defined());
    }
    const auto found = items.find(key);
    from.expect(found != items.end());
    const auto of_cut = cut.find(key);
    const VariablePart* here = nullptr;
    if (of_cut != cut.end()) {
      from.expect(values.size() == 1 && !values.front().is_sparse());
      if (of >= 0) {
        const VariablePart* const theirs = catalog_.part_on(of, *of_cut->second);
        at::Tensor all = found->second.read().front();
        from.expect(theirs != nullptr && values.front().scalar_type() == all.scalar_type() &&
                    values.front().sizes() == at::IntArrayRef(sizes_of(*theirs, all.sizes())));
        put_part(all, values.front(), *theirs);
        values = {all};
      }
      here = catalog_.part_on(server_, *of_cut->second);
    }
    found->second.write(values);
    values = values_of(found->second);
    if (here != nullptr) values = {part_of(values.front(), *here)};
    digests_[key] = digest_of(values);
  }
  take_tables(from);
  from.expect_end();
}

void SharedState::put_tables(std::string& bytes) {
  tables_.resize(catalog_.tables().size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    TableState& state = *catalog_.tables()[i];
    Table& known = tables_[i];
    ByteWriter to(bytes);
    to.put(state.rule ? state.rule->learning_rate() : 0.0);
    to.put(state.evicted_at);
    const TableCut cut = state.table.cut();
    const int64_t since = known.is_new ? TableCut::kAll : known.position;
    SavedRows rows = cut.rows(0, cut.size(), since);
    SavedCounts counts = cut.counts(0, cut.counted(), since);
    if (known.is_new) {
      for (at::Tensor* one : std::initializer_list<at::Tensor*>{&rows.positions, &counts.positions}) {
        if (one->defined()) *one = one->clamp_max(counted_);
      }
    }
    put_rows(bytes, rows);
    for (const at::Tensor* one : {&counts.ids, &counts.positions, &counts.pushes}) put(bytes, *one);
    known.is_new = false;
    for (const at::Tensor* one : std::initializer_list<const at::Tensor*>{&rows.positions, &counts.positions}) {
      if (one->numel() > 0) known.position = std::max(known.position, one->max().item<int64_t>());
    }
  }
}

void SharedState::take_tables(MessageReader& from) {
  tables_.resize(catalog_.tables().size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    TableState& state = *catalog_.tables()[i];
    Table& known = tables_[i];
    const auto rate = from.get<double>();
    const auto evicted_at = from.get<int64_t>();
    const SavedRows rows = get_rows(from);
    SavedCounts counts;
    for (at::Tensor* one : {&counts.ids, &counts.positions, &counts.pushes}) *one = get_tensor(from);
    if (state.rule) state.rule->set_learning_rate(rate);
    if (known.is_new) {  // what an earlier run has left here is not what the chief has restored since
      RowTable none = state.empty();
      if (state.rule) none.use(std::make_shared<RowRule>(state.rule, state.table.options().name));
      state.table.take(std::move(none));
      state.evicted_at = evicted_at;
    }
    const int64_t after = state.table.options().evict_after;
    if (after > 0 && evicted_at > state.evicted_at) {
      state.table.evict(evicted_at - after + 1, evicted_at);
      state.evicted_at = evicted_at;
    }
    if (rows.ids.defined() && rows.ids.numel() > 0) state.table.load(rows);
    if (counts.ids.defined() && counts.ids.numel() > 0) state.table.load(counts);
    known.is_new = false;
    for (const at::Tensor* one : std::initializer_list<const at::Tensor*>{&rows.positions, &counts.positions}) {
      if (one->defined() && one->numel() > 0) known.position = std::max(known.position, one->max().item<int64_t>());
    }
  }
}

}  // namespace lockstep::internal::server
