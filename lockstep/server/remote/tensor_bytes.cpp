#include "lockstep/server/remote/tensor_bytes.h"

#include <ATen/ATen.h>
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline server {

namespace {

enum class Form : uint8_t { kUndefined, kDense, kSparse };

constexpr std::array kTypes{at::kByte,  at::kChar, at::kShort,    at::kInt,          at::kLong,          at::kHalf,
                            at::kFloat, at::kBool, at::kBFloat16, at::kComplexFloat, at::kComplexDouble, at::kDouble};
constexpr uint8_t kMostDimensions = 64;

uint8_t number_of_type(at::ScalarType type) {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] == type) return static_cast<uint8_t>(i);
  }
  throw UsageError("LS-STEP-VALUE",
                   fmt::format("a tensor of dtype {} does not travel between tasks", c10::toString(type)),
                   "convert it to a plain dtype");
}

void put_sizes(ByteWriter& to, at::IntArrayRef sizes) {
  to.put(static_cast<uint8_t>(sizes.size()));
  for (const int64_t size : sizes) to.put(size);
}

std::vector<int64_t> get_sizes(MessageReader& from) {
  const auto dimensions = from.get<uint8_t>();
  from.expect(dimensions <= kMostDimensions);
  std::vector<int64_t> sizes(dimensions);
  for (int64_t& size : sizes) {
    size = from.get<int64_t>();
    from.expect(size >= 0);
  }
  return sizes;
}

void put_dense(std::string& bytes, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  ByteWriter to(bytes);
  to.put(number_of_type(dense.scalar_type()));
  put_sizes(to, dense.sizes());
  to.put_text(host_text(dense));
}

at::Tensor get_dense(MessageReader& from) {
  const auto type = from.get<uint8_t>();
  from.expect(type < kTypes.size());
  const std::vector<int64_t> sizes = get_sizes(from);
  const std::string_view content = from.get_text();
  // How many elements there are, if their bytes can have come.
  const auto element = static_cast<int64_t>(c10::elementSize(kTypes[type]));
  const auto most = static_cast<int64_t>(content.size()) / element;
  int64_t count = 1;
  for (const int64_t size : sizes) {
    if (size == 0) count = 0;
  }
  for (const int64_t size : sizes) {
    if (count == 0) break;
    from.expect(size <= most / count);
    count *= size;
  }
  from.expect(static_cast<uint64_t>(count) * static_cast<uint64_t>(element) == content.size());
  if (kTypes[type] == at::kBool) {
    for (const char byte : content) from.expect(byte == 0 || byte == 1);
  }
  at::Tensor tensor = at::empty(sizes, kTypes[type]);
  if (count > 0) std::memcpy(host_bytes_to_write(tensor).data(), content.data(), content.size());
  return tensor;
}

}  // namespace

void require_sendable(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided && tensor.layout() != at::kSparse) {
    throw UsageError("LS-STEP-VALUE",
                     fmt::format("a tensor of layout {} does not travel between tasks", c10::str(tensor.layout())),
                     "make it dense: to_dense()");
  }
  number_of_type(tensor.scalar_type());
}

void put(std::string& bytes, const at::Tensor& tensor) {
  require_sendable(tensor);
  ByteWriter to(bytes);
  if (!tensor.defined()) {
    to.put(static_cast<uint8_t>(Form::kUndefined));
  } else if (tensor.is_sparse()) {
    const at::Tensor sparse = tensor.coalesce();
    to.put(static_cast<uint8_t>(Form::kSparse));
    put_sizes(to, sparse.sizes());
    put_dense(bytes, sparse.indices());
    put_dense(bytes, sparse.values());
  } else {
    to.put(static_cast<uint8_t>(Form::kDense));
    put_dense(bytes, tensor);
  }
}

namespace {

at::Tensor get_form(MessageReader& from) {
  const auto form = from.get<uint8_t>();
  from.expect(form <= static_cast<uint8_t>(Form::kSparse));
  if (form == static_cast<uint8_t>(Form::kUndefined)) return {};
  if (form == static_cast<uint8_t>(Form::kDense)) return get_dense(from);
  const std::vector<int64_t> sizes = get_sizes(from);
  const at::Tensor indices = get_dense(from);
  const at::Tensor values = get_dense(from);
  from.expect(indices.scalar_type() == at::kLong && indices.dim() == 2 && values.dim() >= 1 &&
              indices.size(1) == values.size(0) &&
              indices.size(0) + values.dim() - 1 == static_cast<int64_t>(sizes.size()));
  const auto number = host_numbers<int64_t>(indices);
  const int64_t count = indices.size(1);
  for (int64_t d = 0; d < indices.size(0); ++d) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = number[static_cast<std::size_t>(d * count + i)];
      from.expect(index >= 0 && index < sizes[static_cast<std::size_t>(d)]);
    }
  }
  for (int64_t d = 1; d < values.dim(); ++d)
    from.expect(values.size(d) == sizes[static_cast<std::size_t>(indices.size(0) + d - 1)]);
  return at::sparse_coo_tensor(indices, values, sizes).coalesce();
}

}  // namespace

at::Tensor get_tensor(MessageReader& from) {
  try {
    return get_form(from);
  } catch (const c10::Error&) {  // sizes whose product is no number
    from.refuse();
  }
}

void put(std::string& bytes, const StepValue& value) {
  ByteWriter to(bytes);
  to.put(static_cast<uint8_t>(value.index()));
  std::visit(
      [&](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, at::Tensor>) {
          put(bytes, one);
        } else if constexpr (std::is_same_v<T, std::string>) {
          to.put_text(one);
        } else if constexpr (!std::is_same_v<T, std::monostate>) {
          to.put(one);
        }
      },
      value);
}

StepValue get_step_value(MessageReader& from) {
  switch (from.get<uint8_t>()) {
    case 0: return std::monostate();
    case 1: return get_tensor(from);
    case 2: return std::string(from.get_text());
    case 3: return from.get<int64_t>();
    case 4: return from.get<uint64_t>();
    case 5: return from.get<double>();
    default: from.refuse();
  }
}

// Errors.

namespace {

/// The error with this text, which has the code in it, and its remedy in its last line.
template <class E>
std::exception_ptr library_error(const std::string& text) {
  const std::size_t line = text.rfind('\n');
  return std::make_exception_ptr(line == std::string::npos ? E(text, "look at the log of that task")
                                                           : E(text.substr(0, line), text.substr(line + 1)));
}
template <class E>
std::exception_ptr standard_error(const std::string& text) {
  return std::make_exception_ptr(E(text));
}

struct ErrorType {
  const char* name;
  bool (*is)(const std::exception& error);
  std::exception_ptr (*make)(const std::string& text);
};

template <class E>
bool is_a(const std::exception& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}

/// Derived types stand before their bases.
constexpr std::array kErrors{
    ErrorType{"lockstep::CancelledError", is_a<CancelledError>, library_error<CancelledError>},
    ErrorType{"lockstep::UsageError", is_a<UsageError>, library_error<UsageError>},
    ErrorType{"lockstep::ClusterError", is_a<ClusterError>, library_error<ClusterError>},
    ErrorType{"lockstep::PeerError", is_a<PeerError>, library_error<PeerError>},
    ErrorType{"lockstep::EndOfStream", is_a<EndOfStream>, library_error<EndOfStream>},
    ErrorType{"lockstep::DataError", is_a<DataError>, library_error<DataError>},
    ErrorType{"lockstep::DivergenceError", is_a<DivergenceError>, library_error<DivergenceError>},
    ErrorType{"lockstep::NonFiniteError", is_a<NonFiniteError>, library_error<NonFiniteError>},
    ErrorType{"lockstep::InternalError", is_a<InternalError>, library_error<InternalError>},
    ErrorType{"std::invalid_argument", is_a<std::invalid_argument>, standard_error<std::invalid_argument>},
    ErrorType{"std::domain_error", is_a<std::domain_error>, standard_error<std::domain_error>},
    ErrorType{"std::length_error", is_a<std::length_error>, standard_error<std::length_error>},
    ErrorType{"std::out_of_range", is_a<std::out_of_range>, standard_error<std::out_of_range>},
    ErrorType{"std::logic_error", is_a<std::logic_error>, standard_error<std::logic_error>},
    ErrorType{"std::range_error", is_a<std::range_error>, standard_error<std::range_error>},
    ErrorType{"std::overflow_error", is_a<std::overflow_error>, standard_error<std::overflow_error>},
    ErrorType{"std::underflow_error", is_a<std::underflow_error>, standard_error<std::underflow_error>},
};

/// What an error is called, by the most derived type that another task can make again.
struct NamedError {
  std::string type;
  std::string text;
};

NamedError named(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& one) {
    for (const ErrorType& type : kErrors) {
      if (type.is(one)) return {type.name, one.what()};
    }
    return {c10::demangle(typeid(one).name()), message_of(error)};
  } catch (...) {
    return {"an exception of another kind", message_of(error)};
  }
}

}  // namespace

void put_error(std::string& bytes, const std::exception_ptr& error) {
  const NamedError one = named(error);
  ByteWriter to(bytes);
  to.put_text(one.type);
  to.put_text(one.text);
}

std::exception_ptr get_error(MessageReader& from) {
  const std::string_view type = from.get_text();
  const std::string text(from.get_text());
  for (const ErrorType& one : kErrors) {
    if (type == one.name) return one.make(text);
  }
  if (type == "std::runtime_error") return std::make_exception_ptr(std::runtime_error(text));
  return std::make_exception_ptr(std::runtime_error(fmt::format("{}: {}", type, text)));
}

}  // namespace lockstep::internal::server
