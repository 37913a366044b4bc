#include "lockstep/core/torch_compat.h"

#include <ATen/ATen.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "lockstep/core/node_shape.h"

namespace lockstep::internal::inline core {

ThreadModes thread_modes() {
  ThreadModes modes;
  auto keys = c10::impl::tls_local_dispatch_key_set();  // not const: raw_repr() is not, up to some 2.x
  modes.included_keys = keys.included_.raw_repr();
  modes.excluded_keys = keys.excluded_.raw_repr();
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  modes.autograd = (autograd.get_grad_mode() ? 1u : 0u) | (autograd.get_inference_mode() ? 2u : 0u) |
                   (autograd.get_fw_grad_mode() ? 4u : 0u);
#if LOCKSTEP_TORCH_AT_LEAST(2, 1)
  modes.autograd |= autograd.get_multithreading_enabled() ? 8u : 0u;
#endif
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  modes.autocast_dtypes = {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::get_autocast_dtype(at::kCUDA)};
#else
  modes.autocast_dtypes = {at::autocast::get_autocast_cpu_dtype(), at::autocast::get_autocast_gpu_dtype()};
#endif
  modes.autocast_cache = at::autocast::is_autocast_cache_enabled();
  modes.must_copy = at::hasThreadLocalCallbacks() || c10::ThreadLocalDebugInfo::current() != nullptr ||
                    at::functorch::functorchTLSAccessor() != nullptr;
  return modes;
}

void set_autocast_details(const ThreadModes& modes) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  at::autocast::set_autocast_dtype(at::kCPU, modes.autocast_dtypes[0]);
  at::autocast::set_autocast_dtype(at::kCUDA, modes.autocast_dtypes[1]);
#else
  at::autocast::set_autocast_cpu_dtype(modes.autocast_dtypes[0]);
  at::autocast::set_autocast_gpu_dtype(modes.autocast_dtypes[1]);
#endif
  at::autocast::set_autocast_cache_enabled(modes.autocast_cache);
}

LazyTensor::LazyTensor(std::array<int64_t, 2> sizes, std::array<int64_t, 2> strides,
                       [[maybe_unused]] const std::string& message)
    : TensorImpl(c10::DispatchKeySet({c10::DispatchKey::CPU, kLazyKey}), caffe2::TypeMeta::Make<float>(),
                 c10::Device(c10::kCPU)) {
  set_sizes_and_strides(at::IntArrayRef(sizes), at::IntArrayRef(strides));
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  release_storage_and_set_meta_custom_data_ptr_error_msg_(message);
#else
  set_storage_access_should_throw();
#endif
}

void LazyTensor::adopt(const at::Tensor& written) {
  storage_ = written.storage();
  storage_access_should_throw_ = false;
  key_set_ = key_set_.remove(kLazyKey);
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  if (!extra_meta_) return;
  extra_meta_->custom_data_ptr_error_msg_.reset();
  extra_meta_->custom_storage_error_msg_.reset();
#endif
}

at::Tensor weight_of_running_product() {
#if LOCKSTEP_TORCH_AT_LEAST(2, 0)
  // Node::name() demangles, which costs more than a small product.
  const auto is = [](const torch::autograd::Node& node, std::string_view mangled_end) {
    return std::string_view(typeid(node).name()).ends_with(mangled_end);
  };
  const auto node = torch::autograd::get_current_node();
  if (!node) return {};
  const std::size_t second = is(*node, "14AddmmBackward0E") ? 2 : is(*node, "11MmBackward0E") ? 1 : node->num_outputs();
  if (second >= node->num_outputs()) return {};
  const torch::autograd::Node* to = node->next_edge(second).function.get();
  if (to && is(*to, "10TBackward0E")) to = to->next_edge(0).function.get();
  const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(to);
  return leaf ? leaf->variable : at::Tensor();
#else
  return {};
#endif
}

int matrix_product_precision() {
  try {
    return static_cast<int>(at::globalContext().float32MatmulPrecision());
  } catch (const c10::Error&) {
    return -1;  // a program that mixes LibTorch's two ways to set it
  }
}

void forget_autocast_weights() { at::autocast::clear_cache(); }

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 0)
  return at::scaled_dot_product_attention(queries, keys, values, {}, 0.0, /*is_causal=*/true);
#else
  const int64_t positions = queries.size(-2);
  const at::Tensor later =
      at::full({positions, positions}, -std::numeric_limits<double>::infinity(), queries.options()).triu_(1);
  const at::Tensor scores =
      at::matmul(queries / std::sqrt(static_cast<double>(queries.size(-1))), keys.transpose(-2, -1));
  return at::matmul((scores + later).softmax(-1), values);
#endif
}

std::vector<int64_t> shape_made_by(const torch::autograd::Node& node) {
  std::vector<int64_t> shape;
  if (node.num_inputs() != 1) return shape;
  const torch::autograd::InputMetadata& made = node.input_metadata(0);
#if LOCKSTEP_TORCH_AT_LEAST(2, 0)
  if (made.is_nested_tensor()) return shape;
  for (const c10::SymInt& size : made.shape_as_dim_vector()) {
    if (size.is_symbolic()) return {};
    shape.push_back(size.expect_int());
  }
#else
  // This version tells the shape in the text of an error alone: "... expected shape compatible with [2, 3]".
  const std::string text = made.incompatible_shape_error_message(0, at::Tensor(at::empty({0}))).str();
  const std::size_t begin = text.rfind("compatible with [");
  if (begin == std::string::npos || text.back() != ']') return shape;
  const std::size_t first = text.find('[', begin) + 1;
  std::istringstream sizes(text.substr(first, text.size() - 1 - first));
  for (std::string size; std::getline(sizes, size, ',');) {
    if (size.find_first_not_of(" 0123456789") != std::string::npos) return {};  // of a nested tensor
    shape.push_back(std::stoll(size));
  }
#endif
  return shape;
}

}  // namespace lockstep::internal::core
