#include "lockstep/checkpoint/formats/tensor_file.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "lockstep/checkpoint/content_checksum.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline checkpoint {

static_assert(std::endian::native == std::endian::little, "elements would have to be turned round");

namespace {

/// How many bytes are read at once: the checksum finds them in the core's cache.
constexpr uint64_t kReadBytes = uint64_t{256} << 10;

/// LibTorch's names, because not every version has all of these dtypes.
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kStored{{{"Float", "F32"},
                                                                                 {"Double", "F64"},
                                                                                 {"Half", "F16"},
                                                                                 {"BFloat16", "BF16"},
                                                                                 {"Long", "I64"},
                                                                                 {"Int", "I32"},
                                                                                 {"Short", "I16"},
                                                                                 {"Char", "I8"},
                                                                                 {"Byte", "U8"},
                                                                                 {"Bool", "BOOL"},
                                                                                 {"UInt16", "U16"},
                                                                                 {"UInt32", "U32"},
                                                                                 {"UInt64", "U64"},
                                                                                 {"Float8_e4m3fn", "F8_E4M3"},
                                                                                 {"Float8_e5m2", "F8_E5M2"},
                                                                                 {"Float8_e8m0fnu", "F8_E8M0"},
                                                                                 {"Float8_e4m3fnuz", "F8_E4M3FNUZ"},
                                                                                 {"Float8_e5m2fnuz", "F8_E5M2FNUZ"}}};

std::string_view stored_name(std::string_view dtype) {
  for (const auto& [torch, stored] : kStored) {
    if (torch == dtype) return stored;
  }
  return dtype == "ComplexFloat" ? "F32" : dtype == "ComplexDouble" ? "F64" : std::string_view();
}

std::string_view torch_name(std::string_view stored) {
  for (const auto& [torch, name] : kStored) {
    if (name == stored) return torch;
  }
  return {};
}

std::optional<at::ScalarType> type_named(std::string_view name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    if (name == c10::toString(static_cast<at::ScalarType>(i))) return static_cast<at::ScalarType>(i);
  }
  return std::nullopt;
}

class MemoryNewFile final : public NewFile {
 public:
  void write(uint64_t offset, std::span<const std::byte> bytes) override {
    if (text.size() < offset + bytes.size()) text.resize(offset + bytes.size());
    std::memcpy(text.data() + offset, bytes.data(), bytes.size());
  }
  void sync() override {}
  std::string text;
};

class MemoryOpenFile final : public OpenFile {
 public:
  explicit MemoryOpenFile(at::Tensor bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return static_cast<uint64_t>(bytes_.numel()); }
  void read(uint64_t offset, std::span<std::byte> bytes) const override {
    if (offset > size() || bytes.size() > size() - offset) throw_damaged("a value of another worker", "is too short");
    std::ranges::copy(host_bytes(bytes_).subspan(offset, bytes.size()), bytes.begin());
  }

 private:
  const at::Tensor bytes_;
};

}  // namespace

std::string dtype_name(at::ScalarType type) { return c10::toString(type); }

std::span<const std::byte> bytes_in(const at::Tensor& dense) { return host_bytes(dense); }

at::Tensor tensor_of_form(at::ScalarType dtype, const std::vector<int64_t>& sizes) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return at::empty(sizes, dtype);
  return at::empty(std::vector<int64_t>(sizes.size(), 1), dtype).expand(sizes);
}

TensorPlace stored_form(const std::string& name, const at::Tensor& value) {
  const std::string_view stored = stored_name(dtype_name(value.scalar_type()));
  if (stored.empty()) {
    throw UsageError("LS-DTYPE",
                     fmt::format("'{}' is of dtype {}, which safetensors files do not have", shown(name),
                                 dtype_name(value.scalar_type())),
                     "use another dtype for it");
  }
  TensorPlace place{.name = name, .dtype = std::string(stored), .shape = value.sizes().vec()};
  if (value.is_complex()) place.shape.push_back(2);
  return place;
}

void require_storable(const NamedTensors& tensors) {
  std::set<std::string_view> names;
  for (const auto& [name, value] : tensors) {
    check_operand(fmt::format("a checkpoint, for '{}',", shown(name)).c_str(), value);
    stored_form(name, value);
    if (!is_utf8(name)) {
      throw UsageError("LS-NAME", fmt::format("the name '{}' of a tensor is not UTF-8, as files need it", shown(name)),
                       "give it a name in UTF-8");
    }
    if (name == "__metadata__") {
      throw UsageError("LS-NAME", "a value has the name '__metadata__', which safetensors files have for themselves",
                       "give it another name");
    }
    if (!names.insert(name).second) {
      throw UsageError("LS-NAME", fmt::format("two values would have the name '{}' in a file", shown(name)),
                       "give one of them another name");
    }
  }
}

FileLayout layout_of(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  require_storable(tensors);
  // Larger elements come first, so that all are aligned where the file is mapped.
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  TensorFileHeader header{.metadata = metadata};
  for (const std::size_t i : order) header.tensors.push_back(stored_form(tensors[i].first, tensors[i].second));
  layout(header);
  FileLayout planned{.head = encode_header(header)};
  planned.bytes = planned.head.size() + (header.tensors.empty() ? 0 : header.tensors.back().end);
  planned.offsets.resize(tensors.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    planned.offsets[order[k]] = planned.head.size() + header.tensors[k].begin;
  }
  return planned;
}

void write_tensors(NewFile& file, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  const at::NoGradGuard no_grad;
  const FileLayout planned = layout_of(tensors, metadata);
  file.write(0, std::as_bytes(std::span(planned.head)));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor value = plain_and_contiguous(tensors[i].second.detach());
    const std::span<const std::byte> bytes = bytes_in(value);
    if (!bytes.empty()) file.write(planned.offsets[i], bytes);
  }
  file.sync();
}

at::Tensor packed(const NamedTensors& tensors) {
  std::map<std::string, std::string> dtypes;  // a complex tensor is stored as another
  for (const auto& [name, value] : tensors) dtypes[name] = dtype_name(value.scalar_type());
  MemoryNewFile file;
  write_tensors(file, tensors, dtypes);
  return tensor_of_text(file.text);
}

NamedTensors unpacked(const at::Tensor& bytes) {
  const TensorFile file(std::make_unique<MemoryOpenFile>(bytes), "a value of another worker");
  NamedTensors tensors;
  for (const TensorPlace& place : file.header().tensors) {
    const auto dtype = file.header().metadata.find(place.name);
    tensors.emplace_back(place.name, file.read(place, dtype == file.header().metadata.end() ? "" : dtype->second));
  }
  return tensors;
}

TensorFile::TensorFile(std::unique_ptr<OpenFile> file, std::string what)
    : what_(std::move(what)), file_(std::move(file)) {
  std::array<unsigned char, kLengthBytes> first{};
  if (file_->size() >= kLengthBytes) file_->read(0, std::as_writable_bytes(std::span(first)));
  const uint64_t length = header_length(first, file_->size(), what_);
  std::string text(kLengthBytes + length, '\0');
  file_->read(0, std::as_writable_bytes(std::span(text)));
  data_begin_ = text.size();
  header_checksum_ = content_checksum(text);
  header_ = decode_header(std::string_view(text).substr(kLengthBytes), file_->size() - data_begin_, what_);
}

at::Tensor TensorFile::memory_for(const TensorPlace& place, const std::string& dtype) const {
  const std::string name = dtype.empty() ? std::string(torch_name(place.dtype)) : dtype;
  const bool is_complex = name.starts_with("Complex");
  const std::optional<at::ScalarType> type = type_named(is_complex ? torch_name(place.dtype) : name);
  if (!type || stored_name(name) != place.dtype || (is_complex && (place.shape.empty() || place.shape.back() != 2))) {
    throw_damaged(what_, fmt::format("has '{}' as {}, which is not {} in this version of LibTorch", shown(place.name),
                                     shown(place.dtype), name.empty() ? "a dtype" : shown(name)));
  }
  return at::empty(place.shape, at::TensorOptions().dtype(*type));
}

std::string TensorFile::read_bytes(const TensorPlace& place, const at::Tensor& memory, uint64_t begin,
                                   uint64_t end) const {
  return read_bytes(place, begin, host_bytes_to_write(memory).subspan(begin, end - begin));
}

std::string TensorFile::read_bytes(const TensorPlace& place, uint64_t begin, std::span<std::byte> to) const {
  ContentChecksum checksum;
  for (uint64_t done = 0; done < to.size(); done += kReadBytes) {
    const std::span<std::byte> bytes = to.subspan(done, std::min<std::size_t>(kReadBytes, to.size() - done));
    file_->read(data_begin_ + place.begin + begin + done, bytes);
    checksum.add(bytes);
  }
  return checksum.digits();
}

at::Tensor TensorFile::finished(const TensorPlace& place, const std::string& dtype, const at::Tensor& memory) const {
  const at::NoGradGuard no_grad;
  const std::span<const std::byte> bytes = bytes_in(memory);
  if (memory.scalar_type() == at::kBool &&
      std::any_of(bytes.begin(), bytes.end(), [](std::byte one) { return one > std::byte{1}; })) {
    throw_damaged(what_, fmt::format("has '{}' with an element that is neither true nor false", shown(place.name)));
  }
  return dtype.starts_with("Complex") ? at::view_as_complex(memory) : memory;
}

at::Tensor TensorFile::read(const TensorPlace& place, const std::string& dtype) const {
  const at::Tensor memory = memory_for(place, dtype);
  read_bytes(place, memory, 0, place.end - place.begin);
  return finished(place, dtype, memory);
}

}  // namespace lockstep::internal::checkpoint
