// All differences between the LibTorch versions that Lockstep builds with, 1.13 to 2.15, and nothing else. This header
// has the differences that headers need; torch_compat.cpp has the rest.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#define LOCKSTEP_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace lockstep::internal::inline core {

/// The parts of at::ThreadLocalState that can be compared without copying it, and the parts of autocast that older
/// versions leave out of it. `must_copy` is true where there is state that cannot be compared, such as profiler
/// callbacks.
struct ThreadModes {
  uint64_t included_keys = 0;
  uint64_t excluded_keys = 0;
  uint32_t autograd = 0;
  std::array<at::ScalarType, 2> autocast_dtypes{};  // of cpu and cuda
  bool autocast_cache = false;
  bool must_copy = false;
  bool operator==(const ThreadModes&) const = default;
};

/// The modes of the calling thread.
ThreadModes thread_modes();

/// Sets what at::ThreadLocalState may leave out: autocast's dtypes and cache.
void set_autocast_details(const ThreadModes& modes);

/// Empties autocast's cache of cast weights, whether autocast is on or off now. Call it after weights changed, while no
/// replica computes: a replica that has cached a weight in this pass would cast it again, and its gradient would be
/// rounded differently.
void forget_autocast_weights();

/// Whether each thread has its own autocast cache, which only that thread can empty. From LibTorch 2.0 on there is one
/// cache for all threads.
inline constexpr bool kAutocastCachePerThread = !LOCKSTEP_TORCH_AT_LEAST(2, 0);

/// Attention of each position to itself and to the positions before it: queries, keys and values [..., positions, width
/// of a head], the scores divided by the root of that width. One fused operator where LibTorch has it (2.0).
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values);

/// The dispatch key of tensors without memory. It comes after autograd and before the kernels that compute. LibTorch's
/// C++ libraries have no kernel under it; intercept/keys.h says which the library has.
inline constexpr c10::DispatchKey kLazyKey = c10::DispatchKey::Fake;

/// A dense float32 matrix of the host that has no memory until it is materialized. Until then it has kLazyKey, so that
/// a listener (intercept/operator_listener.h) hears each operator that is given the tensor.
class LazyTensor : public c10::TensorImpl {
 public:
  /// Computes the matrix and adopts its memory, if that has not happened yet.
  virtual void materialize() = 0;

#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  const c10::Storage& storage() const override {
    const_cast<LazyTensor*>(this)->materialize();
    return TensorImpl::storage();
  }
#endif

 protected:
  /// Where memory is asked for by data_ptr(), which cannot be overridden, LibTorch throws an error with `message`, as
  /// far as this version can.
  LazyTensor(std::array<int64_t, 2> sizes, std::array<int64_t, 2> strides, const std::string& message);
  /// From now on this is an ordinary tensor over the memory of `written`.
  void adopt(const at::Tensor& written);
};

/// The tensor as one without memory; null for all others. Cheap.
inline LazyTensor* lazy_tensor(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return impl->key_set().has(kLazyKey) ? dynamic_cast<LazyTensor*>(impl) : nullptr;
}

/// The address of a tensor's first element, for reading only. Materializes a tensor that has no memory yet.
inline const void* address_of(const at::Tensor& tensor) {
  if (LazyTensor* const lazy = lazy_tensor(tensor)) lazy->materialize();
#if LOCKSTEP_TORCH_AT_LEAST(2, 1)
  return tensor.const_data_ptr();
#else
  return tensor.data_ptr();
#endif
}
/// The same, for writing by somebody who notes the write: it counts as none for LibTorch.
inline char* memory_of(const at::Tensor& tensor) {
  return const_cast<char*>(static_cast<const char*>(address_of(tensor)));
}

/// A node of autograd's graph, in the kind of pointer that this LibTorch version has for nodes.
template <class Node, class... Arguments>
auto make_autograd_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...), [](Node* node) { deleteNode(node); });
  }
}

/// A pointer of that kind to a node that has one already.
template <class Node>
auto pointer_to(Node& node) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::intrusive_ptr<Node>::reclaim_copy(&node);
  } else {
    return node.shared_from_this();
  }
}

/// If this thread computes the gradient of a matrix product's second factor, and that is a leaf, or a leaf's transpose:
/// the leaf, otherwise an undefined tensor. Always undefined in versions that do not say which node runs (before 2.0).
at::Tensor weight_of_running_product();
inline constexpr bool kTellsRunningNode = LOCKSTEP_TORCH_AT_LEAST(2, 0);

/// A number for the precision that the program has chosen for float32 products (at::Context); -1 where it has no single
/// one.
int matrix_product_precision();

/// A c10::Allocator of host memory: derive from it and implement new_block().
class HostAllocator : public c10::Allocator {
 public:
  /// Called on any thread. Throws where there is no memory.
  virtual c10::DataPtr new_block(std::size_t bytes) const = 0;

  // Each version overrides one of the first two (const up to some 2.x), and later ones the third; so `override` cannot
  // be written. NOLINTBEGIN(modernize-use-override)
  c10::DataPtr allocate(std::size_t bytes) { return new_block(bytes); }
  c10::DataPtr allocate(std::size_t bytes) const { return new_block(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
  // NOLINTEND(modernize-use-override)
};

}  // namespace lockstep::internal::core
