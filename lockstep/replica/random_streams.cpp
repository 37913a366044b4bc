// Gives LibTorch's random operators the generator of their thread's stream. They take an optional generator and fall
// back to a global one. A listener above autograd fills this argument in, whichever code calls the operator:
// torch::nn::Dropout, torch::randn, the user.
#include "lockstep/replica/random_streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/dispatch/Dispatcher.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/intercept/operator_listener.h"

namespace lockstep::internal::inline replica {

namespace {

thread_local RandomStream* current_stream = nullptr;

bool is_optional_of(const c10::Argument& argument, c10::TypeKind kind) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == kind;
}

/// Fills in the generator of one operator.
class FillGenerator final : public OperatorListener {
 public:
  explicit FillGenerator(const c10::FunctionSchema& schema) {
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (is_optional_of(argument, c10::TypeKind::GeneratorType)) generator_ = i;
      if (is_optional_of(argument, c10::TypeKind::DeviceObjType)) device_ = i;
      if (!tensor_ && argument.type()->kind() == c10::TypeKind::TensorType) tensor_ = i;
    }
  }

  bool applies() const { return generator_.has_value(); }

  void hear(OperatorCall& call) override {
    if (!current_stream) return;
    const std::span<c10::IValue> inputs = call.inputs();
    if (inputs[*generator_].isNone() && on_cpu(inputs)) inputs[*generator_] = current_stream->generator();
  }

 private:
  bool on_cpu(std::span<const c10::IValue> inputs) const {
    if (tensor_) return inputs[*tensor_].toTensor().device().is_cpu();
    if (device_ && !inputs[*device_].isNone()) return inputs[*device_].toDevice().is_cpu();
    return true;
  }

  std::optional<std::size_t> generator_;
  std::optional<std::size_t> device_;
  std::optional<std::size_t> tensor_;
};

StreamKey of_name(uint64_t seed, StreamPurpose purpose, std::string_view name) {
  const uint64_t hash = XXH3_64bits(name.data(), name.size());
  return {seed, purpose, static_cast<int64_t>(hash >> 40), static_cast<int64_t>(hash & 0xffffffffu)};
}

int register_listeners() {
  auto& dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    auto listener = std::make_unique<FillGenerator>(op->schema());
    if (!listener->applies()) continue;
    listen_above_autograd(*op, *listener);
    static_cast<void>(listener.release());  // it is never destroyed
    ++count;
  }
  return count;
}

}  // namespace

StreamKey StreamKey::of_module(uint64_t seed, std::string_view name) {
  return of_name(seed, StreamPurpose::kModule, name);
}

StreamKey StreamKey::of_variable(uint64_t seed, std::string_view name) {
  return of_name(seed, StreamPurpose::kVariable, name);
}

RandomStream::RandomStream() : generator_(at::make_generator<at::CPUGeneratorImpl>()) {}

const at::Generator& RandomStream::generator() {
  if (!stale_) return generator_;
  const uint64_t subsequence = static_cast<uint64_t>(key_.purpose) << 56 |
                               (static_cast<uint64_t>(key_.replica) & 0xffffff) << 32 |
                               (static_cast<uint64_t>(key_.step) & 0xffffffff);
  // Invariant: streams of one seed that differ in their keys draw from different parts of Philox's sequence. Purpose,
  // replica and step have separate bits of the subsequence; Philox counts blocks of four words, and 2^31 blocks lie
  // between two draws of the same step.
  at::philox_engine words(key_.seed, subsequence, static_cast<uint64_t>(key_.draw) << 31);
  at::mt19937_data_pod state{};
  state.seed_ = key_.seed;
  state.seeded_ = true;
  state.left_ = 1;  // the first draw makes a new block of numbers from the state
  state.next_ = 0;
  for (uint32_t& word : state.state_) word = words();
  at::mt19937 engine;
  engine.set_data(state);
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(generator_);
  cpu->set_engine(engine);
  cpu->set_next_float_normal_sample({});
  cpu->set_next_double_normal_sample({});
  stale_ = false;
  return generator_;
}

RandomScope::RandomScope(RandomStream& stream) : outer_(std::exchange(current_stream, &stream)) {}

RandomScope::~RandomScope() { current_stream = outer_; }

namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

DefaultGeneratorGuard::DefaultGeneratorGuard()
    : seed_(at::detail::getDefaultCPUGenerator().current_seed()),
      before_(state_of(at::detail::getDefaultCPUGenerator())) {}

DefaultGeneratorGuard::~DefaultGeneratorGuard() {
  try {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const uint64_t seed = generator.current_seed();
    // The same seed again begins the same numbers again.
    if (seed == seed_) {
      const at::Tensor now = state_of(generator);
      if (now.equal(before_) || !now.equal(state_of(at::detail::createCPUGenerator(seed)))) return;
    }
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(before_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): without memory the generator stays as it is
  }
}

namespace {

at::CPUGeneratorImpl& default_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

/// Whether nothing was drawn since the generator was seeded.
bool is_fresh(const at::mt19937_data_pod& state) { return state.left_ == 1 && state.next_ == 0; }

/// In a generator that makes its next block of numbers at the next draw, the place in the old block says nothing.
void set_place_in_old_block(uint32_t place) {
  at::mt19937_data_pod state = default_generator().engine().data();
  state.next_ = place;
  at::mt19937 engine;
  engine.set_data(state);
  default_generator().set_engine(engine);
}

constexpr uint32_t kMark = at::MERSENNE_STATE_N;

bool is_marked(const at::mt19937_data_pod& state) { return state.left_ == 1 && state.next_ == kMark; }

int marking_watches = 0;  // guarded by the generator's mutex

}  // namespace

DefaultGeneratorWatch::DefaultGeneratorWatch() {
  const std::lock_guard<std::mutex> lock(default_generator().mutex_);
  seed_ = default_generator().current_seed();
  // So that it is not as it will be after the same seed again.
  if (is_fresh(default_generator().engine().data())) set_place_in_old_block(kMark);
  is_marked_ = is_marked(default_generator().engine().data());
  if (is_marked_) ++marking_watches;
}

DefaultGeneratorWatch::~DefaultGeneratorWatch() {
  if (!is_marked_) return;
  const std::lock_guard<std::mutex> lock(default_generator().mutex_);
  if (--marking_watches == 0 && is_marked(default_generator().engine().data())) set_place_in_old_block(0);
}

bool DefaultGeneratorWatch::was_seeded() const {
  const std::lock_guard<std::mutex> lock(default_generator().mutex_);
  return default_generator().current_seed() != seed_ || is_fresh(default_generator().engine().data());
}

int intercept_random_operators() {
  static const int count = register_listeners();
  return count;
}

}  // namespace lockstep::internal::replica
