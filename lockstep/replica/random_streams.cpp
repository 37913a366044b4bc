// Gives LibTorch's random operators the generator of their thread's stream. They take an optional generator and fall
// back to a global one. A kernel under a dispatch key that only threads in a RandomScope include fills this argument
// in, whichever code calls the operator: torch::nn::Dropout, torch::randn, the user. All other operators fall through
// the key at no cost.
#include "lockstep/replica/random_streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace lockstep::internal {

namespace {

thread_local RandomStream* current_stream = nullptr;

bool is_optional_of(const c10::Argument& argument, c10::TypeKind kind) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == kind;
}

/// Fills in the generator of one operator.
class FillGenerator final : public c10::OperatorKernel {
 public:
  explicit FillGenerator(const c10::FunctionSchema& schema) : num_arguments_(schema.arguments().size()) {
    for (std::size_t i = 0; i < num_arguments_; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (is_optional_of(argument, c10::TypeKind::GeneratorType)) generator_ = i;
      if (is_optional_of(argument, c10::TypeKind::DeviceObjType)) device_ = i;
      if (!tensor_ && argument.type()->kind() == c10::TypeKind::TensorType) tensor_ = i;
    }
  }

  bool applies() const { return generator_.has_value(); }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (generator_ && current_stream) {
      c10::IValue& generator = argument(*stack, *generator_);
      if (generator.isNone() && on_cpu(*stack)) generator = current_stream->generator();
    }
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kStepKey), stack);
  }

 private:
  c10::IValue& argument(torch::jit::Stack& stack, std::size_t i) const {
    return stack[stack.size() - num_arguments_ + i];
  }

  bool on_cpu(torch::jit::Stack& stack) const {
    if (tensor_) return argument(stack, *tensor_).toTensor().device().is_cpu();
    if (device_ && !argument(stack, *device_).isNone()) return argument(stack, *device_).toDevice().is_cpu();
    return true;
  }

  std::size_t num_arguments_;
  std::optional<std::size_t> generator_;
  std::optional<std::size_t> device_;
  std::optional<std::size_t> tensor_;
};

StreamKey of_name(uint64_t seed, StreamPurpose purpose, std::string_view name) {
  const uint64_t hash = XXH3_64bits(name.data(), name.size());
  return {seed, purpose, static_cast<int64_t>(hash >> 40), static_cast<int64_t>(hash & 0xffffffffu)};
}

int register_kernels() {
  // Registrations are never destroyed: replicas of static strategies may still run while static objects are destroyed.
  static auto* others = new torch::Library(torch::Library::IMPL, "_", kStepKey, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFallthrough());
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kStepKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    auto kernel = std::make_unique<FillGenerator>(op->schema());
    if (!kernel->applies()) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    aten->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
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

RandomScope::RandomScope(RandomStream& stream)
    : outer_(current_stream), key_was_included_(c10::impl::tls_is_dispatch_key_included(kStepKey)) {
  current_stream = &stream;
  if (!key_was_included_) c10::impl::tls_set_dispatch_key_included(kStepKey, true);
}

RandomScope::~RandomScope() {
  current_stream = outer_;
  if (!key_was_included_) c10::impl::tls_set_dispatch_key_included(kStepKey, false);
}

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
  static const int count = register_kernels();
  return count;
}

}  // namespace lockstep::internal
