#include "lockstep/variable/module/summary.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace lockstep {

namespace {

/// One module's own tensors.
struct Layer {
  std::string name;
  std::string type;
  std::string tensors = {};
  int64_t elements = 0;
  int64_t trained = 0;
};

struct Sums {
  int64_t elements = 0;
  int64_t trained = 0;
  int64_t buffers = 0;
  int64_t bytes = 0;
};

/// "1,234,567".
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto i = static_cast<int64_t>(text.size()) - 3; i > 0; i -= 3) text.insert(static_cast<std::size_t>(i), ",");
  return text;
}

/// "1.4 MB".
std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"bytes", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, kUnits.at(unit));
}

/// "Linear" of "torch::nn::LinearImpl".
std::string type_of(const torch::nn::Module& module) {
  std::string type = module.name();
  const std::string space = "torch::nn::";
  if (type.rfind(space, 0) != 0) return type;
  type.erase(0, space.size());
  const std::string end = "Impl";
  if (type.size() > end.size() && type.ends_with(end)) type.erase(type.size() - end.size());
  return type;
}

/// Goes through a module from the outside in, in order of registration.
class Walk {
 public:
  explicit Walk(const torch::nn::Module& root) { add(root, ""); }
  const std::vector<Layer>& layers() const { return layers_; }
  const Sums& sums() const { return sums_; }

 private:
  void add(const torch::nn::Module& module, const std::string& name) {
    const std::string shown = name.empty() ? "(itself)" : name;
    const auto [known, is_new] = modules_.emplace(&module, shown);
    if (!is_new) {
      layers_.push_back({shown, type_of(module), "the same as " + known->second});
      return;
    }
    const auto children = module.named_children();
    Layer layer{.name = shown, .type = type_of(module)};
    std::vector<std::string> texts;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      add(item.key(), item.value(), name, true, layer, texts);
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      add(item.key(), item.value(), name, false, layer, texts);
    }
    layer.tensors = texts.empty() ? "-" : fmt::format("{}", fmt::join(texts, ", "));
    if (!texts.empty() || children.is_empty()) layers_.push_back(std::move(layer));
    for (const auto& item : children) {
      if (item.value()) add(*item.value(), name.empty() ? item.key() : name + "." + item.key());
    }
  }

  void add(const std::string& key, const at::Tensor& tensor, const std::string& module, bool is_parameter, Layer& layer,
           std::vector<std::string>& texts) {
    if (!tensor.defined()) return;
    const std::string whole = module.empty() ? key : module + "." + key;
    const auto [known, is_new] = tensors_.emplace(tensor.unsafeGetTensorImpl(), whole);
    if (!is_new) {
      texts.push_back(fmt::format("{}: the same as {}", key, known->second));
      return;
    }
    const char* const note = !is_parameter ? " (buffer)" : tensor.requires_grad() ? "" : " (frozen)";
    texts.push_back(fmt::format("{} [{}]{}", key, fmt::join(tensor.sizes(), ", "), note));
    sums_.bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
    if (!is_parameter) {
      sums_.buffers += tensor.numel();
      return;
    }
    const int64_t trained = tensor.requires_grad() ? tensor.numel() : 0;
    layer.elements += tensor.numel();
    layer.trained += trained;
    sums_.elements += tensor.numel();
    sums_.trained += trained;
  }

  std::vector<Layer> layers_;
  Sums sums_;
  std::map<const torch::nn::Module*, std::string> modules_;  // names of those that were met
  std::map<const c10::TensorImpl*, std::string> tensors_;
};

}  // namespace

std::string summary(const torch::nn::Module& module) {
  const Walk walk(module);
  std::vector<std::vector<std::string>> rows{{"layer", "type", "parameters", "trained", "tensors"}};
  for (const Layer& one : walk.layers()) {
    rows.push_back({one.name, one.type, grouped(one.elements), grouped(one.trained), one.tensors});
  }
  const Sums& sums = walk.sums();
  rows.push_back({"in all", type_of(module), grouped(sums.elements), grouped(sums.trained), ""});
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = fmt::format("{:<{}}  {:<{}}  {:>{}}  {:>{}}  {}", row[0], widths[0], row[1], widths[1], row[2],
                                   widths[2], row[3], widths[3], row[4]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text + fmt::format("frozen: {}; elements of buffers: {}; memory of both: {}\n",
                            grouped(sums.elements - sums.trained), grouped(sums.buffers), bytes_text(sums.bytes));
}

}  // namespace lockstep
