#include "lockstep/server/remote/payload_codec.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <utility>
#include <variant>

#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/remote/tensor_bytes.h"
#include "lockstep/server/step_call.h"
#include "lockstep/server/table/row_hash.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

void put_change(std::string& bytes, const StepPush::Change& change, const Catalog& catalog) {
  ByteWriter to(bytes);
  to.put(catalog.number_of(change.variable));
  to.put(static_cast<uint8_t>(change.change));
  put(bytes, change.value);
}

namespace {

template <class T>
void put_optional(ByteWriter& to, const std::optional<T>& value) {
  to.put(uint8_t{value.has_value()});
  to.put(value.value_or(T()));
}

template <class T>
std::optional<T> get_optional(MessageReader& from) {
  const auto is_there = from.get<uint8_t>();
  from.expect(is_there <= 1);
  const T value = from.get<T>();
  return is_there == 1 ? std::optional(value) : std::nullopt;
}

bool get_flag(MessageReader& from) {
  const auto flag = from.get<uint8_t>();
  from.expect(flag <= 1);
  return flag == 1;
}

void put_options(ByteWriter& to, const StepOptions& options) {
  put_optional(to, options.clip_global_norm);
  put_optional(to, options.clip_value);
  to.put(uint8_t{options.check_finite});
  to.put(uint8_t{options.skip_non_finite});
  to.put(uint8_t{options.loss_scaled_by_hand});
  to.put(uint8_t{options.gradients_changed_on_purpose});
}

StepOptions get_options(MessageReader& from) {
  StepOptions options;
  options.clip_global_norm = get_optional<double>(from);
  options.clip_value = get_optional<double>(from);
  options.check_finite = get_flag(from);
  options.skip_non_finite = get_flag(from);
  options.loss_scaled_by_hand = get_flag(from);
  options.gradients_changed_on_purpose = get_flag(from);
  return options;
}

void put_request(std::string& bytes, const Wanted& wanted, const Catalog& catalog) {
  ByteWriter to(bytes);
  to.put(static_cast<uint8_t>(wanted.index()));
  if (const auto* rows = std::get_if<WantedRows>(&wanted)) {
    to.put(catalog.number_of(*rows->table));
    to.put_list(rows->ids);
    return;
  }
  const auto& variables = std::get<WantedVariables>(wanted);
  to.put(variables.part);
  to.put(uint8_t{variables.whole});
  to.put(uint64_t{variables.variables.size()});
  for (std::size_t i = 0; i < variables.variables.size(); ++i) {
    to.put(catalog.number_of(variables.variables[i]));
    const HadAt& at = variables.have[i];
    put_optional(to, at.empty() ? std::nullopt : std::optional(at.front()));
  }
}

/// Room for tensors that are appended next, so that what is there already does not move.
template <class Tensors, class TensorOf>
void reserve_for(std::string& bytes, const Tensors& tensors, const TensorOf& tensor_of) {
  constexpr std::size_t kBesides = 64;  // sizes and the like
  std::size_t more = 0;
  for (const auto& one : tensors) {
    const at::Tensor& tensor = tensor_of(one);
    if (tensor.defined() && !tensor.is_sparse()) more += tensor.nbytes() + kBesides;
  }
  bytes.reserve(bytes.size() + more);
}

void put_values(std::string& bytes, const PulledTensors& pulled) {
  ByteWriter to(bytes);
  to.put(pulled.at);
  to.put(uint8_t{pulled.error != nullptr});
  if (pulled.error) return put_error(bytes, pulled.error);
  to.put(uint64_t{pulled.values.size()});
  reserve_for(bytes, pulled.values, std::identity());
  for (const at::Tensor& one : pulled.values) put(bytes, one);
}

Payload get_values(std::string_view bytes) {
  MessageReader from(bytes, -1, "values of a parameter server");
  auto pulled = std::make_shared<PulledTensors>();
  pulled->at = from.get<Position>();
  if (get_flag(from)) {
    pulled->error = get_error(from);
  } else {
    const std::size_t count = from.get_count(1);
    for (std::size_t i = 0; i < count; ++i) pulled->values.push_back(get_tensor(from));
  }
  from.expect_end();
  return pulled;
}

void put_arguments(std::string& bytes, const StepCall& call) {
  ByteWriter to(bytes);
  to.put(uint64_t{call.inputs.size()});
  for (const StepInput& one : call.inputs) {
    const auto* const step = std::get_if<std::shared_ptr<ScheduledStep>>(&one);
    if (!step) {
      put(bytes, std::get<StepValue>(one));
    } else {
      put(bytes, (*step)->result ? as<StepValue>((*step)->result) : StepValue());
    }
  }
}

Payload get_arguments(std::string_view bytes) {
  MessageReader from(bytes, -1, "arguments of a step");
  auto values = std::make_shared<StepValues>();
  const std::size_t count = from.get_count(1);
  for (std::size_t i = 0; i < count; ++i) values->push_back(get_step_value(from));
  from.expect_end();
  return values;
}

}  // namespace

void RemotePayloads::put_push(std::string& bytes, const StepPush& push) const {
  const auto as_sent = [&](const at::Tensor& gradient) {  // the worker has rounded it: no bit is lost
    return rounds_gradients_ && gradient.scalar_type() == at::kFloat ? gradient.to(at::kBFloat16) : gradient;
  };
  ByteWriter to(bytes);
  to.put(push.part);
  put_options(to, push.options);
  to.put(uint64_t{push.gradients.size()});
  reserve_for(bytes, push.gradients, [](const StepPush::Gradient& one) -> const at::Tensor& { return one.gradient; });
  for (const StepPush::Gradient& one : push.gradients) {
    to.put(catalog_.number_of(one.variable));
    server::put(bytes, as_sent(one.gradient));
  }
  to.put(uint64_t{push.buffers.size()});
  for (const StepPush::Buffer& one : push.buffers) {
    to.put(catalog_.number_of(one.variable));
    server::put(bytes, one.value);
  }
  to.put(uint64_t{push.changes.size()});
  for (const StepPush::Change& one : push.changes) put_change(bytes, one, catalog_);
  to.put(uint64_t{push.rows.size()});
  for (const RowsOfStep& one : push.rows) {
    to.put(catalog_.number_of(*one.table));
    to.put_list(one.ids);
    server::put(bytes, as_sent(one.gradients));
  }
}

at::Tensor RemotePayloads::get_gradient(MessageReader& from, at::ScalarType type) const {
  const at::Tensor gradient = get_tensor(from);
  const bool is_rounded = rounds_gradients_ && type == at::kFloat && gradient.defined();
  return is_rounded && gradient.scalar_type() == at::kBFloat16 ? gradient.to(at::kFloat) : gradient;
}

void RemotePayloads::put(PayloadKind kind, const Payload& payload, std::string& bytes) {
  switch (kind) {
    case PayloadKind::kArguments: return put_arguments(bytes, as<StepCall>(payload));
    case PayloadKind::kResult: return server::put(bytes, as<StepValue>(payload));
    case PayloadKind::kError: return put_error(bytes, as<StepFailure>(payload).error);
    case PayloadKind::kRequest: return put_request(bytes, as<Wanted>(payload), catalog_);
    case PayloadKind::kValues: return put_values(bytes, as<PulledTensors>(payload));
    case PayloadKind::kPush: return put_push(bytes, as<StepPush>(payload));
    case PayloadKind::kRates: return;
    case PayloadKind::kChange:
    case PayloadKind::kSaved: bytes += as<std::string>(payload); return;
    case PayloadKind::kSquares: {
      ByteWriter to(bytes);
      to.put(as<SquaresOfRound>(payload).squares);
      put_optional(to, as<SquaresOfRound>(payload).clip);
      return;
    }
  }
}

Payload RemotePayloads::get(PayloadKind kind, std::string_view bytes) {
  MessageReader from(bytes, -1, "a part of a message between tasks");
  switch (kind) {
    case PayloadKind::kArguments: return get_arguments(bytes);
    case PayloadKind::kRequest: return get_request(bytes);
    case PayloadKind::kValues: return get_values(bytes);
    case PayloadKind::kPush: return get_push(bytes);
    case PayloadKind::kResult: {
      auto value = std::make_shared<StepValue>(get_step_value(from));
      from.expect_end();
      return value;
    }
    case PayloadKind::kError: {
      auto failure = std::make_shared<StepFailure>(StepFailure{get_error(from)});
      from.expect_end();
      return failure;
    }
    case PayloadKind::kRates: from.refuse();
    case PayloadKind::kChange:
    case PayloadKind::kSaved: return std::make_shared<std::string>(bytes);
    case PayloadKind::kSquares: {
      auto squares = std::make_shared<SquaresOfRound>();
      squares->squares = from.get<double>();
      squares->clip = get_optional<double>(from);
      from.expect_end();
      return squares;
    }
  }
  from.refuse();
}

const Variable& RemotePayloads::variable(MessageReader& from) const {
  const auto number = from.get<uint32_t>();
  from.expect(number < catalog_.variables().size());
  const Variable& one = catalog_.variables()[number];
  from.expect(server_ < 0 || catalog_.part_on(server_, one.state()) != nullptr);
  return one;
}

const std::shared_ptr<TableState>& RemotePayloads::table(MessageReader& from) const {
  const auto number = from.get<uint32_t>();
  from.expect(number < catalog_.tables().size());
  return catalog_.tables()[number];
}

std::vector<int64_t> RemotePayloads::sizes_here(const Variable& variable) const {
  return server_ < 0 ? variable.sizes().vec()
                     : sizes_of(*catalog_.part_on(server_, variable.state()), variable.sizes());
}

/// The ids of rows of the table that lie here.
std::vector<int64_t> RemotePayloads::get_ids(MessageReader& from, const TableState& table) const {
  std::vector<int64_t> ids = from.get_list<int64_t>();
  const EmbeddingOptions& options = table.table.options();
  const uint64_t number = table_number(options.name);
  for (const int64_t id : ids) {
    // Whether an id is a row at all, the table says itself.
    const bool is_row = options.rows == 0 || static_cast<uint64_t>(id) < static_cast<uint64_t>(options.rows);
    from.expect(server_ < 0 || !is_row || server::server_of(row_hash(number, id), servers_) == server_);
  }
  return ids;
}

Payload RemotePayloads::get_request(std::string_view bytes) const {
  MessageReader from(bytes, -1, "what a step pulls");
  auto wanted = std::make_shared<Wanted>();
  const auto kind = from.get<uint8_t>();
  from.expect(kind <= 1);
  if (kind == 1) {
    WantedRows rows{table(from)};
    rows.ids = get_ids(from, *rows.table);
    *wanted = std::move(rows);
  } else {
    WantedVariables variables;
    variables.part = from.get<int64_t>();
    variables.whole = get_flag(from);
    const std::size_t count = from.get_count(sizeof(uint32_t));
    for (std::size_t i = 0; i < count; ++i) {
      const Variable& one = variable(from);
      const bool is_part = variables.part >= 0 && variables.part < one.state().num_components();
      from.expect(one.state().on_write() || is_part);
      variables.variables.push_back(one);
      const auto at = get_optional<Position>(from);
      variables.have.push_back(at ? HadAt{*at} : HadAt());
    }
    *wanted = std::move(variables);
  }
  from.expect_end();
  return wanted;
}

StepPush::Change RemotePayloads::get_change(MessageReader& from) const {
  StepPush::Change change{variable(from), WorkerValues::Change::kAssign, {}};
  const auto how = from.get<uint8_t>();
  from.expect(how <= static_cast<uint8_t>(WorkerValues::Change::kSubtract));
  change.change = static_cast<WorkerValues::Change>(how);
  change.value = get_tensor(from);
  from.expect(change.value.defined() && !change.value.is_sparse() &&
              change.value.sizes() == at::IntArrayRef(sizes_here(change.variable)) &&
              change.value.scalar_type() == change.variable.dtype());
  return change;
}

Payload RemotePayloads::get_push(std::string_view bytes) const {
  MessageReader from(bytes, -1, "what a step pushes");
  auto push = std::make_shared<StepPush>();
  push->part = from.get<int64_t>();
  from.expect(push->part >= 0);
  push->options = get_options(from);
  for (std::size_t left = from.get_count(sizeof(uint32_t)); left > 0; --left) {
    const Variable& one = variable(from);
    push->gradients.push_back({one, get_gradient(from, one.dtype())});
    const at::Tensor& gradient = push->gradients.back().gradient;
    from.expect(gradient.defined() && (!gradient.is_sparse() || gradient.sparse_dim() > 0));
    from.expect(gradient.sizes() == at::IntArrayRef(sizes_here(one)) && gradient.scalar_type() == one.dtype());
  }
  for (std::size_t left = from.get_count(sizeof(uint32_t)); left > 0; --left) {
    const Variable& one = variable(from);
    push->buffers.push_back({one, get_tensor(from)});
    const at::Tensor& value = push->buffers.back().value;
    from.expect(!one.state().on_write() && value.defined() && !value.is_sparse() && value.scalar_type() == one.dtype());
    from.expect(push->part < one.state().num_components());
  }
  for (std::size_t left = from.get_count(sizeof(uint32_t)); left > 0; --left) push->changes.push_back(get_change(from));
  for (std::size_t left = from.get_count(sizeof(uint32_t)); left > 0; --left) {
    RowsOfStep rows{table(from)};
    rows.ids = get_ids(from, *rows.table);
    const EmbeddingOptions& options = rows.table->table.options();
    const at::ScalarType type = options.dtype == at::kDouble ? at::kDouble : at::kFloat;
    rows.gradients = get_gradient(from, type);
    from.expect(rows.gradients.defined() && !rows.gradients.is_sparse() && rows.gradients.dim() == 2 &&
                rows.gradients.size(0) == static_cast<int64_t>(rows.ids.size()) &&
                rows.gradients.size(1) == options.dim && rows.gradients.scalar_type() == type);
    push->rows.push_back(std::move(rows));
  }
  from.expect_end();
  return push;
}

namespace {

void require(const Payload& payload, const char* what) {
  if (payload) return;
  throw PeerError("LS-PEER-MESSAGE", fmt::format("a message of a task lacks {}", what),
                  "start all tasks with the same version of Lockstep");
}

}  // namespace

void require_payloads(const ChiefMessage& message) {
  const auto* const report = std::get_if<StepReport>(&message);
  if (report && report->outcome == StepOutcome::kFailed) require(report->payload, "the error of a step");
  if (const auto* const squares = std::get_if<RoundSquares>(&message)) require(squares->squares, "a round's squares");
}

void require_payloads(const ServerMessage& message) {
  if (const auto* const pull = std::get_if<PullRequest>(&message)) require(pull->request, "what is pulled");
  if (const auto* const push = std::get_if<PushRequest>(&message)) require(push->push, "what is pushed");
}

void require_payloads(const WorkerMessage& message) {
  // Parts of evaluations come by messages of their own.
  const auto* const give = std::get_if<GiveStep>(&message);
  if (give && give->step.step >= kFirstEvaluated) require(nullptr, "the number of a step");
  if (const auto* const values = std::get_if<PulledValues>(&message)) require(values->values, "the values of a pull");
  const auto* const answer = std::get_if<PushAnswer>(&message);
  if (answer && answer->verdict == PushVerdict::kRefused) require(answer->error, "why a push was refused");
}

}  // namespace lockstep::internal::server
