#include "lockstep/checkpoint/formats/state_dict.h"

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/formats/zip_file.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline checkpoint {

namespace {

constexpr std::string_view kPickle = "/data.pkl";

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 12> kStorages{
    {{"FloatStorage", at::kFloat},
     {"DoubleStorage", at::kDouble},
     {"HalfStorage", at::kHalf},
     {"BFloat16Storage", at::kBFloat16},
     {"LongStorage", at::kLong},
     {"IntStorage", at::kInt},
     {"ShortStorage", at::kShort},
     {"CharStorage", at::kChar},
     {"ByteStorage", at::kByte},
     {"BoolStorage", at::kBool},
     {"ComplexFloatStorage", at::kComplexFloat},
     {"ComplexDoubleStorage", at::kComplexDouble}}};

/// Dtypes that have no storage of their own, by Python's and by LibTorch's name: not every version has all of them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kUntyped{
    {{"torch.uint16", "UInt16"},
     {"torch.uint32", "UInt32"},
     {"torch.uint64", "UInt64"},
     {"torch.float8_e4m3fn", "Float8_e4m3fn"},
     {"torch.float8_e5m2", "Float8_e5m2"},
     {"torch.float8_e4m3fnuz", "Float8_e4m3fnuz"},
     {"torch.float8_e5m2fnuz", "Float8_e5m2fnuz"},
     {"torch.float8_e8m0fnu", "Float8_e8m0fnu"}}};

std::optional<at::ScalarType> type_of(std::string_view pickled) {
  for (const auto& [name, type] : kStorages) {
    if (name == pickled) return type;
  }
  for (const auto& [name, torch] : kUntyped) {
    for (int i = 0; name == pickled && i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
      if (torch == c10::toString(static_cast<at::ScalarType>(i))) return static_cast<at::ScalarType>(i);
    }
  }
  return std::nullopt;
}

bool has_storage(at::ScalarType type) {
  return std::any_of(kStorages.begin(), kStorages.end(), [&](const auto& one) { return one.second == type; });
}

void read_entry(const OpenFile& file, const ZipEntry& entry, std::span<std::byte> bytes, const std::string& whose) {
  if (!entry.is_stored) throw_damaged(whose, "is compressed, which torch.save does not do");
  if (!bytes.empty()) file.read(entry.begin, bytes);
  uLong crc = crc32_z(0, nullptr, 0);
  crc = crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (static_cast<uint32_t>(crc) != entry.crc) throw_damaged(whose, "has other bytes than its CRC-32 says");
}

/// Whether all elements lie in a storage of so many elements, and are not more than it has.
bool lies_in(const PickledTensor& tensor) {
  if (tensor.shape.size() != tensor.strides.size() || tensor.offset < 0 || tensor.offset > tensor.elements)
    return false;
  int64_t count = 1;
  int64_t last = tensor.offset;
  bool is_empty = false;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    int64_t span = 0;
    if (tensor.shape[d] < 0 || tensor.strides[d] < 0) return false;
    is_empty = is_empty || tensor.shape[d] == 0;
    if (__builtin_mul_overflow(count, std::max<int64_t>(tensor.shape[d], 1), &count)) return false;
    if (__builtin_mul_overflow(std::max<int64_t>(tensor.shape[d], 1) - 1, tensor.strides[d], &span)) return false;
    if (__builtin_add_overflow(last, span, &last)) return false;
  }
  return is_empty || last < tensor.elements;
}

/// Such a tensor is not read, because a small file could ask for any amount of memory. It lies in its storage.
bool is_expanded(const PickledTensor& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count > tensor.elements;
}

}  // namespace

namespace {

/// The entries of a file of torch.save, and the pickle in it.
struct SavedPickle {
  std::map<std::string, ZipEntry> entries = {};
  std::string folder = {};
  std::string text = {};
};

SavedPickle pickle_in(const OpenFile& file, const std::string& what) {
  SavedPickle found{.entries = entries_of_zip(file, what)};
  const auto pickle = std::find_if(found.entries.begin(), found.entries.end(), [](const auto& one) {
    return one.first.ends_with(kPickle) && one.first.find('/') == one.first.size() - kPickle.size();
  });
  if (pickle == found.entries.end()) throw_damaged(what, "has no data.pkl: it is no file of torch.save");
  found.folder = pickle->first.substr(0, pickle->first.size() - kPickle.size());
  found.text.resize(pickle->second.size);
  read_entry(file, pickle->second, std::as_writable_bytes(std::span(found.text)), what + ": data.pkl");
  if (const auto order = found.entries.find(found.folder + "/byteorder"); order != found.entries.end()) {
    std::string word(std::min<uint64_t>(order->second.size, 16), '\0');
    file.read(order->second.begin, std::as_writable_bytes(std::span(word)));
    if (word != "little") throw_damaged(what, fmt::format("has its bytes in the order '{}'", shown(word)));
  }
  return found;
}

/// With tensors of an object one may have thought to read all.
void warn_of_objects(const std::vector<PickledObject>& objects, const std::string& what) {
  if (objects.empty()) return;
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < objects.size() && i < kShown; ++i) {
    text += fmt::format("{}'{}' of type '{}'", i == 0 ? "" : ", ", shown(objects[i].name), objects[i].type);
  }
  log(LogLevel::kWarning, fmt::format("{}: the tensors in {}{} are not read: only dictionaries, lists and tuples are "
                                      "looked into",
                                      what, text, objects.size() > kShown ? ", ..." : ""));
}

}  // namespace

std::map<std::string, PickledValue> read_values(const OpenFile& file, const std::string& what) {
  return values_of_pickle(pickle_in(file, what).text, what);
}

NamedTensors read_state_dict(const OpenFile& file, const std::string& what,
                             const std::function<bool(const std::string&)>& wants) {
  const SavedPickle saved = pickle_in(file, what);
  PickleContents contents = contents_of_pickle(saved.text, what);
  warn_of_objects(contents.passed_over, what);
  std::map<std::string, at::Tensor> storages;
  // Storages as their conjugate or negative views show them, once each: a small file may name a storage many times.
  std::map<std::tuple<std::string, bool, bool>, at::Tensor> shown_storages;
  NamedTensors tensors;
  for (PickledTensor& one : contents.tensors) {
    if (!wants(one.name)) continue;
    const std::string whose = fmt::format("{}: '{}'", what, shown(one.name));
    const std::optional<at::ScalarType> type = type_of(one.type);
    if (!one.odd.empty() || !type) {
      throw DataError("LS-CHECKPOINT-DAMAGED",
                      fmt::format("{} is of the type '{}', which cannot be read", whose,
                                  shown(one.odd.empty() ? one.type : one.odd)),
                      "save it as a dense tensor of another dtype, or leave it out by the function that names tensors");
    }
    if (one.type.starts_with("torch.")) {  // its storage counts bytes
      if (one.elements % static_cast<int64_t>(c10::elementSize(*type)) != 0) {
        throw_damaged(whose, "has no storage of the size that it needs");
      }
      one.elements /= static_cast<int64_t>(c10::elementSize(*type));
    }
    if (!lies_in(one)) throw_damaged(whose, "has elements that are not in its storage");
    if (is_expanded(one)) {
      throw DataError(
          "LS-CHECKPOINT-DAMAGED",
          fmt::format("{} has more elements than its storage: it was expanded, or its elements overlap", whose),
          "save it again as value.contiguous()");
    }
    auto storage = storages.find(one.storage);
    if (storage == storages.end()) {
      const auto entry = saved.entries.find(fmt::format("{}/data/{}", saved.folder, one.storage));
      const uint64_t element = c10::elementSize(*type);
      if (entry == saved.entries.end() || one.elements < 0 || entry->second.size % element != 0 ||
          entry->second.size / element != static_cast<uint64_t>(one.elements)) {
        throw_damaged(whose, "has no storage of the size that it needs");
      }
      at::Tensor bytes = at::empty({one.elements}, at::TensorOptions().dtype(*type));
      const std::span<std::byte> memory = host_bytes_to_write(bytes);
      read_entry(file, entry->second, memory, whose);
      if (*type == at::kBool &&
          std::any_of(memory.begin(), memory.end(), [](std::byte b) { return b > std::byte{1}; })) {
        throw_damaged(whose, "has an element that is neither true nor false");
      }
      storage = storages.emplace(one.storage, std::move(bytes)).first;
    }
    if (storage->second.scalar_type() != *type || storage->second.numel() != one.elements) {
      throw_damaged(whose, "has a storage that another tensor has as another type or size");
    }
    if (one.is_neg && *type == at::kBool) throw_damaged(whose, "is the negative of truth values");
    at::Tensor whole = storage->second;
    if (one.is_conj || one.is_neg) {
      at::Tensor& known = shown_storages[{one.storage, one.is_conj, one.is_neg}];
      if (!known.defined()) {
        known = one.is_conj && whole.is_complex() ? whole.conj().resolve_conj() : whole;
        if (one.is_neg) known = known.neg();
      }
      whole = known;
    }
    tensors.emplace_back(one.name, whole.as_strided(one.shape, one.strides, one.offset));
  }
  return tensors;
}

void require_state_dict(const NamedTensors& tensors) {
  require_storable(tensors);
  for (const auto& [name, value] : tensors) {
    if (name.size() > kLongestPickledName) {
      throw UsageError("LS-NAME",
                       fmt::format("'{}' has {} bytes, and files of torch.save are read with names of up to {}",
                                   shown(name), name.size(), kLongestPickledName),
                       "write a safetensors file, or give it a shorter name");
    }
    if (static_cast<std::size_t>(value.dim()) > kMostPickledDimensions) {
      throw UsageError("LS-SHAPE",
                       fmt::format("'{}' has {} dimensions, and files of torch.save are read with up to {}",
                                   shown(name), value.dim(), kMostPickledDimensions),
                       "write a safetensors file, or reshape it");
    }
    if (has_storage(value.scalar_type())) continue;
    throw UsageError("LS-DTYPE",
                     fmt::format("'{}' is of dtype {}, which files of torch.save have no storage for", shown(name),
                                 dtype_name(value.scalar_type())),
                     "write a safetensors file, or use another dtype for it");
  }
}

void write_state_dict(NewFile& file, const NamedTensors& tensors) {
  require_state_dict(tensors);
  const at::NoGradGuard no_grad;
  c10::Dict<std::string, at::Tensor> dictionary;
  std::map<const void*, at::ScalarType> type_of_storage;
  for (const auto& [name, value] : tensors) {
    at::Tensor dense = plain_and_contiguous(value.detach());
    // The whole storage is written, which may have other tensors in it; and once, with the dtype of the first tensor.
    const auto shared = type_of_storage.find(dense.storage().unsafeGetStorageImpl());
    const bool has_other_type = shared != type_of_storage.end() && shared->second != dense.scalar_type();
    if (has_other_type || dense.storage().nbytes() != bytes_in(dense).size()) dense = dense.clone();
    type_of_storage.emplace(dense.storage().unsafeGetStorageImpl(), dense.scalar_type());
    dictionary.insert(name, dense);
  }
  // torch::pickle_save would name the dictionary's type, by a function that weights_only=True does not allow.
  std::string pickled;
  torch::jit::Pickler pickler([&](const char* data, std::size_t size) { pickled.append(data, size); }, nullptr, nullptr,
                              nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(dictionary);
  pickler.stop();
  uint64_t written = 0;
  std::exception_ptr error;  // must not go through the zip library, which is C
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    try {
      if (!error) file.write(written, {static_cast<const std::byte*>(data), size});
    } catch (...) {
      error = std::current_exception();
    }
    written += size;
    return size;
  });
  writer.writeRecord("data.pkl", pickled.data(), pickled.size());
  for (std::size_t i = 0; i < pickler.tensorData().size() && !error; ++i) {
    const std::span<const std::byte> bytes = bytes_in(pickler.tensorData()[i]);
    writer.writeRecord(fmt::format("data/{}", i), bytes.data(), bytes.size());
  }
  writer.writeEndOfFile();
  if (error) std::rethrow_exception(error);
  file.sync();
}

}  // namespace lockstep::internal::checkpoint
