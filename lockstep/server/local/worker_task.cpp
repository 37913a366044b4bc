// The order of events: the loop gives each message to the machine and carries what follows. When the machine says that
// a step begins, the loop calls the step's function. Inside of it a pull sends a request, and takes messages until the
// answer has come; a push sends everything away at once. When the function has ended, the machine is told, and the loop
// goes on.
#include "lockstep/server/local/worker_task.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <variant>

#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/optim/rules/option_checks.h"
#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/record/value_digest.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/module/module_binding.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

void require_ours(bool is_ours, const char* call, const std::string& name) {
  if (is_ours) return;
  throw UsageError("LS-OTHER-STRATEGY", fmt::format("{} of '{}' was called in a step of another strategy", call, name),
                   "use it in steps of the strategy that made it");
}

uint64_t digest_of(const StepPush& push) {
  uint64_t digest = 0;
  for (const StepPush::Gradient& one : push.gradients) digest = digest_with(digest, one.gradient);
  for (const StepPush::Buffer& one : push.buffers) digest = digest_with(digest, one.value);
  for (const StepPush::Change& one : push.changes) digest = digest_with(digest, one.value);
  for (const RowsOfStep& one : push.rows) digest = digest_with(Digest(digest).with_all(one.ids).value(), one.gradients);
  return digest;
}

/// As they would be on the way to a server in half the bytes.
void round_gradients(StepPush& push) {
  const auto round = [](at::Tensor& gradient) {
    if (gradient.is_sparse()) gradient = gradient.coalesce();  // gradients of one row are added in float32
    if (gradient.scalar_type() == at::kFloat) gradient = gradient.to(at::kBFloat16).to(at::kFloat);
  };
  for (StepPush::Gradient& one : push.gradients) round(one.gradient);
  for (RowsOfStep& one : push.rows) round(one.gradients);
}

constexpr auto kNothingOld = [](std::size_t /*i*/) { return at::Tensor(); };

/// The run ends while a step waits for an answer: unwinds its function.
class RunEnded final : public std::exception {
 public:
  const char* what() const noexcept override { return "the run of parameter servers has ended"; }
};

}  // namespace

WorkerTask::WorkerTask(WorkersShared& shared, int32_t worker, uint32_t incarnation)
    : shared_(shared),
      worker_(worker),
      machine_(shared.epoch, {worker, incarnation}, shared.placement.servers),
      evaluation_machine_(shared.epoch, {worker, incarnation}, shared.placement.servers),
      modules_(shared.strategy, shared.factories) {
  warm_up_math();
  thread_ = std::thread([this] { run(); });
}

WorkerTask::~WorkerTask() { stop(); }

void WorkerTask::stop() {
  mail_.close();
  if (thread_.joinable()) thread_.join();
}

void WorkerTask::run() {
  const CallerScope task(Caller::kTask);
  set_compute_settings_of_this_thread(StrategyAccess::group(shared_.strategy).plan().compute);
  while (const auto message = mail_.take()) {
    take(*message);
    while (!begins_.empty()) {
      const StepBegins next = std::move(begins_.front());
      begins_.pop_front();
      run_step(next);
    }
  }
}

std::optional<RunningStep> WorkerTask::running() const {
  const std::lock_guard<std::mutex> lock(running_mutex_);
  return running_;
}

void WorkerTask::put(const WorkerMessage& message) {
  const auto* const values = std::get_if<PulledValues>(&message);
  mail_.put({message, values != nullptr && values->step.step >= kFirstEvaluated});
}

void WorkerTask::take(const Mail& mail) {
  WorkerOutput out;
  (mail.is_of_evaluation ? evaluation_machine_ : machine_).receive(mail.message, out);
  carry(out);
}

void WorkerTask::carry(WorkerOutput& out) {
  for (const ToServer& one : out.to_servers) shared_.to_server(one);
  for (const ChiefMessage& one : out.to_chief) {
    const auto* const report = std::get_if<StepReport>(&one);
    const bool is_of_evaluation = report != nullptr && report->step.step >= kFirstEvaluated;
    (is_of_evaluation ? shared_.to_evaluation : shared_.to_chief)(one);
  }
  for (const WorkerEvent& event : out.events) {
    if (const auto* begins = std::get_if<StepBegins>(&event)) begins_.push_back(*begins);
    if (const auto* values = std::get_if<ValuesArrived>(&event)) answers_[values->pull] = values->values;
  }
}

void WorkerTask::run_step(const StepBegins& begins) {
  if (begins.step.step >= kFirstEvaluated) return evaluate_part(begins);
  StepUnderWay step;
  step.step = begins.step;
  step.part = shared_.in_rounds ? begins.step.step % shared_.workers : 0;
  const int64_t round = shared_.in_rounds ? begins.step.step / shared_.workers : begins.step.step;
  const StreamKey key{shared_.strategy.seed(), StreamPurpose::kReplica, step.part, round};
  std::optional<StepEnd> end = end_of(step, key, [&](WorkerContext& context, StepEnd& so) {
    so.payload = shared_.function(begins.kind)(context, begins.arguments);
    if (!step.has_pushed && !step.changes.empty()) push(step, {});
    if (!step.has_pushed) report_gradients_left(step);
    modules_.report_own_writes(step);
  });
  modules_.drop_gradients(step);  // what the step did not push
  if (!end) return;
  end->apply = step.apply;
  end->coefficient = step.coefficient;
  WorkerOutput out;
  machine_.finish(*std::move(end), out);
  carry(out);
}

void WorkerTask::evaluate_part(const StepBegins& begins) {
  const auto& part = as<EvaluationPart>(begins.arguments);
  StepUnderWay step;
  step.step = begins.step;
  step.evaluation = &part;
  step.part = part.part;
  const int64_t whole = part.batch.global_size;
  step.share = whole == 0 ? 0 : static_cast<double>(part.batch.samples()) / static_cast<double>(whole);
  std::optional<StepEnd> end = end_of(step, part.stream, [&](WorkerContext& context, StepEnd& so) {
    const at::NoGradGuard no_grad;
    auto evaluated = std::make_shared<EvaluatedPart>();
    evaluated->result = (part.call ? part.call : shared_.evaluate(begins.kind))(context, part.batch);
    evaluated->changes = std::move(step.changes);
    so.payload = std::move(evaluated);
  });
  // train() sets a module's children too; they stand after it in this list, so each has its own mode in the end.
  for (const auto& [module, is_training] : step.modes) {
    try {
      module->train(is_training);
    } catch (const std::exception& error) {
      log(LogLevel::kError, fmt::format("worker {}: a module's mode could not be put back after an evaluation: {}",
                                        worker_, error.what()));
    }
  }
  if (!end) return;
  WorkerOutput out;
  evaluation_machine_.finish(*std::move(end), out);
  carry(out);
}

std::optional<StepEnd> WorkerTask::end_of(StepUnderWay& step, const StreamKey& key,
                                          FunctionRef<void(WorkerContext&, StepEnd&)> fn) {
  current_ = &step;
  if (!step.evaluation) {  // which has no limit
    const std::lock_guard<std::mutex> lock(running_mutex_);
    running_ = {.step = step.step, .begin = std::chrono::steady_clock::now()};
  }
  answers_.clear();
  stream_.restart(key);
  std::optional<StepEnd> end(std::in_place);
  try {
    const RandomScope random(stream_);
    const CallerScope in_step(Caller::kStep);
    WorkerContext context(*this, step);
    fn(context, *end);
  } catch (const EndOfStream&) {
    end->outcome = step.evaluation ? StepOutcome::kFailed : StepOutcome::kStreamEnded;
    if (step.evaluation) end->payload = std::make_shared<StepFailure>(StepFailure{std::current_exception()});
  } catch (const RunEnded&) {
    end.reset();
  } catch (...) {
    end->outcome = StepOutcome::kFailed;
    end->payload = std::make_shared<StepFailure>(StepFailure{std::current_exception()});
  }
  current_ = nullptr;
  {
    const std::lock_guard<std::mutex> lock(running_mutex_);
    running_.reset();
  }
  if (end) {
    end->data = record_digest(step.data);
    end->push = record_digest(step.push);
  }
  return end;
}

void WorkerTask::report_gradients_left(const StepUnderWay& step) {
  const auto has_gradient = [](const auto& one) { return one.second.grad().defined(); };
  bool has_any =
      std::ranges::any_of(step.values, has_gradient) || std::ranges::any_of(step.rows, [](const PulledRows& rows) {
        return std::ranges::any_of(rows.weights, [](const at::Tensor& one) { return one.grad().defined(); });
      });
  modules_.for_each_of(
      step, [&](const Variable& /*variable*/, at::Tensor& tensor) { has_any = has_any || tensor.grad().defined(); });
  if (!has_any) return;
  StrategyAccess::findings(shared_.strategy).add("LS-NOT-PUSHED", "ctx.push", step.step.step, [&] {
    return fmt::format(
        "step {}: the step computed gradients and did not push them, so that nothing learns from them; call ctx.push() "
        "after the last backward",
        step.step.step);
  });
}

void WorkerTask::report_unscaled(const StepUnderWay& step, const StepPush& push) {
  const bool has_gradients = !push.gradients.empty() || !push.rows.empty();
  if (!shared_.in_rounds || shared_.workers == 1 || step.has_scaled || push.options.loss_scaled_by_hand ||
      !has_gradients)
    return;
  StrategyAccess::findings(shared_.strategy).add("LS-LOSS-NOT-SCALED", "ctx.push", step.step.step, [&] {
    return fmt::format(
        "step {}: gradients were pushed of a loss that never went through scale_loss; the {} parts of a round are "
        "added, so that they are about {} times too large; write ctx.scale_loss(loss).backward(), or push with "
        "{{.loss_scaled_by_hand = true}} where the loss has its share",
        step.step.step, shared_.workers, shared_.workers);
  });
}

std::vector<PulledValue> WorkerTask::pull(const StepUnderWay& step, Wanted wanted,
                                          FunctionRef<at::Tensor(std::size_t)> old) {
  const std::vector<WantedOfServer> asked = by_server(wanted, shared_.placement);
  WorkerOutput out;
  std::vector<uint32_t> numbers;
  for (const WantedOfServer& one : asked)
    numbers.push_back(machine_of(step).pull(one.server, std::make_shared<Wanted>(one.wanted), out));
  carry(out);
  while (!std::ranges::all_of(numbers, [&](uint32_t number) { return answers_.contains(number); })) {
    const auto message = mail_.take();
    if (!message) throw RunEnded();
    take(*message);
  }
  std::vector<const PulledTensors*> answers;
  for (const uint32_t number : numbers) answers.push_back(&as<PulledTensors>(answers_[number]));
  return put_together(wanted, asked, answers, old);
}

void* WorkerTask::module_of(StepUnderWay& step, const std::shared_ptr<ModuleBinding>& binding,
                            FunctionRef<WorkerValues::MadeModule()> make) {
  require_ours(binding->group().get() == &StrategyAccess::group(shared_.strategy), "model(ctx)", binding->name());
  return modules_.use(step, binding, make, [&](WantedVariables wanted, FunctionRef<at::Tensor(std::size_t)> old) {
    return pull(step, std::move(wanted), old);
  });
}

at::Tensor WorkerTask::value_of(StepUnderWay& step, const Variable& variable) {
  const VariableState* const state = &variable.state();
  require_ours(state->group().get() == &StrategyAccess::group(shared_.strategy), "Variable::value", variable.name());
  if (const auto found = step.values.find(state); found != step.values.end()) return found->second;
  if (const at::Tensor in_module = modules_.value_of(step, *state); in_module.defined()) return in_module;
  WantedVariables wanted{{variable}, {HadAt()}, step.part};
  at::Tensor value = pull(step, std::move(wanted), kNothingOld).front().value;
  if (variable.trainable() && state->on_write() && value.is_floating_point()) value.set_requires_grad(true);
  step.used.push_back(variable);
  return step.values[state] = value;
}

at::Tensor WorkerTask::rows_of(StepUnderWay& step, const std::shared_ptr<TableState>& table, const at::Tensor& ids) {
  require_ours(table->gate.get() == shared_.gate, "Embedding::look_up", table->table.options().name);
  auto found = std::ranges::find(step.rows, table, &PulledRows::table);
  if (found == step.rows.end()) found = step.rows.insert(step.rows.end(), {.table = table});
  PulledRows& pulled = *found;
  WantedRows wanted{table};
  at::Tensor places = at::empty({ids.numel()}, at::kLong);
  const auto id = host_numbers<int64_t>(ids);
  const auto place = host_numbers_to_write<int64_t>(places);
  for (std::size_t i = 0; i < id.size(); ++i) {
    const auto [at, is_new] = pulled.places.emplace(id[i], static_cast<int64_t>(pulled.places.size()));
    if (is_new) wanted.ids.push_back(id[i]);
    place[i] = at->second;
  }
  if (!wanted.ids.empty()) {
    pulled.ids.push_back(wanted.ids);
    at::Tensor weights = pull(step, std::move(wanted), kNothingOld).front().value;
    if (at::isFloatingType(weights.scalar_type())) weights.set_requires_grad(true);
    pulled.weights.push_back(std::move(weights));
  }
  if (pulled.weights.empty()) {  // no row was asked for: as torch::nn::Embedding, part of a graph
    at::Tensor none = at::empty({0, table->table.options().dim}, table->table.options().dtype);
    return none.set_requires_grad(true);
  }
  const at::Tensor all = pulled.weights.size() == 1 ? pulled.weights.front() : at::cat(pulled.weights);
  return all.index_select(0, places);
}

void WorkerTask::push(StepUnderWay& step, const StepOptions& options) {
  optim::check(options);  // here, where the step can still fail
  auto push = std::make_shared<StepPush>();
  push->part = step.part;
  push->options = options;
  const auto add = [&](const Variable& variable, at::Tensor tensor) {
    if (!tensor.grad().defined()) return;
    const auto same = [&](const StepPush::Gradient& one) { return &one.variable.state() == &variable.state(); };
    const auto found = std::ranges::find_if(push->gradients, same);
    if (found == push->gradients.end()) {
      push->gradients.push_back({variable, tensor.grad()});
    } else {
      found->gradient = found->gradient + tensor.grad();  // as value(ctx), and in a module
    }
    tensor.mutable_grad() = at::Tensor();
  };
  modules_.for_each_of(step, [&](const Variable& variable, at::Tensor& tensor) {
    if (variable.state().on_write()) {
      add(variable, tensor);
    } else {
      push->buffers.push_back({variable, tensor.detach().clone()});
    }
  });
  for (const Variable& variable : step.used) add(variable, step.values.at(&variable.state()));
  for (PulledRows& pulled : step.rows) {
    const at::ScalarType type = pulled.table->table.options().dtype == at::kDouble ? at::kDouble : at::kFloat;
    RowsOfStep rows{pulled.table};
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < pulled.weights.size(); ++i) {
      if (!pulled.weights[i].grad().defined()) continue;
      rows.ids.insert(rows.ids.end(), pulled.ids[i].begin(), pulled.ids[i].end());
      gradients.push_back(pulled.weights[i].grad().to(type));
      pulled.weights[i].mutable_grad() = at::Tensor();
    }
    if (gradients.empty()) continue;
    rows.gradients = at::cat(gradients).contiguous();
    push->rows.push_back(std::move(rows));
  }
  report_unscaled(step, *push);
  if (shared_.rounds_gradients) round_gradients(*push);
  push->changes = std::move(step.changes);
  step.changes.clear();
  step.has_pushed = true;
  decide_for_servers(step, *push);
  if (shared_.digests) step.push = digest_of(*push);
  WorkerOutput out;
  machine_.push(by_server(push, shared_.placement), out);
  carry(out);
}

void WorkerTask::decide_for_servers(StepUnderWay& step, StepPush& push) {
  if (shared_.placement.servers == 1) return;
  if (push.options.skip_non_finite && not_finite_in(push)) step.apply = false;
  if (push.options.clip_global_norm && !shared_.in_rounds)
    step.coefficient = clip_factor_of(squares_of({&push}), *push.options.clip_global_norm);
}

lockstep::data::StreamReader& WorkerTask::reader_of(int64_t stream, FunctionRef<lockstep::data::Stream()> make) {
  std::unique_ptr<lockstep::data::StreamReader>& reader = readers_[stream];
  if (!reader) {
    const std::lock_guard<std::mutex> lock(shared_.factories);
    const auto begin = shared_.places.begin_of(stream, worker_);
    const lockstep::data::Stream made = make();
    reader = begin ? made.source()->open({}, *begin) : made.open();
  }
  return *reader;
}

}  // namespace lockstep::internal::server
