#include "lockstep/data/deal/batch_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/rows.h"

namespace lockstep::internal::inline data {

namespace {

/// What cross_entropy and nll_loss leave out.
constexpr int64_t kIgnoredTarget = -100;

bool joins(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || (a.scalar_type() == b.scalar_type() && a.dim() == b.dim() && a.dim() > 0 &&
                          std::equal(a.sizes().begin() + 1, a.sizes().end(), b.sizes().begin() + 1));
}

/// Which sample batch `i` begins with, for messages.
std::string sample_text(std::span<const Batch> batches, std::size_t i, const SampleNames& names) {
  const at::Tensor& ids = batches[i].ids;
  const bool has_ids = ids.defined() && ids.dim() > 0 && ids.size(0) > 0;
  if (names.ids.empty() && !has_ids) return i == 0 ? "one" : "another";
  const int64_t id = names.ids.empty() ? ids[0].item<int64_t>() : names.ids[i];
  return names.name_of ? names.name_of(id) : fmt::format("sample {}", id);
}

at::Tensor joined(std::span<const Batch> batches, const char* what, const std::string& who, const SampleNames& names,
                  const std::function<const at::Tensor&(const Batch&)>& get) {
  const at::Tensor& first = get(batches.front());
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const at::Tensor& one = get(batches[i]);
    if (!joins(first, one)) {
      throw DataError(
          "LS-SAMPLE-SHAPE",
          fmt::format("{} gives samples of different shapes: the {} is {} in {} and {} in {}", who, what,
                      text_of(first), sample_text(batches, 0, names), text_of(one), sample_text(batches, i, names)),
          kHowToJoin);
    }
    if (one.defined()) all.push_back(one);
  }
  if (all.empty()) return {};
  return all.size() == 1 ? all.front() : at::cat(all, 0);
}

/// Some rows as a view. Of ordinary tensors it is made without LibTorch's dispatcher, which would take longer than most
/// of what is done to a sample.
at::Tensor view_of_rows(const at::Tensor& tensor, int64_t begin, int64_t count) {
  if (!is_plain(tensor) || tensor.dim() == 0) return tensor.narrow(0, begin, count);
  auto view = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                   tensor.key_set(), tensor.dtype());
  c10::DimVector sizes(tensor.sizes());
  sizes[0] = count;
  view->set_storage_offset(tensor.storage_offset() + begin * tensor.stride(0));
  view->set_sizes_and_strides(sizes, tensor.strides());
  return at::Tensor(std::move(view));
}

/// Rows, which are there, of an ordinary tensor that lies in one piece. They may lie anywhere in memory, so each is
/// fetched while the ones before it are copied.
at::Tensor copied_rows(const at::Tensor& tensor, std::span<const int64_t> rows) {
  constexpr std::size_t kAhead = 6;
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kFetched = 4 * kLine;  // of a row; the processor fetches what follows
  c10::DimVector sizes(tensor.sizes());
  sizes[0] = static_cast<int64_t>(rows.size());
  at::Tensor result = at::empty(sizes, tensor.options());
  if (result.numel() == 0) return result;
  const std::size_t bytes = result.nbytes() / rows.size();
  const auto* const from = static_cast<const char*>(tensor.data_ptr());
  auto* to = static_cast<char*>(result.data_ptr());
  const auto copy = [&](auto size) {
    for (std::size_t i = 0; i < rows.size(); ++i, to += size) {
      if (i + kAhead < rows.size()) {
        const char* const next = from + static_cast<std::size_t>(rows[i + kAhead]) * size;
        for (std::size_t line = 0; line < std::min<std::size_t>(kFetched, size); line += kLine)
          __builtin_prefetch(next + line);
      }
      std::memcpy(to, from + static_cast<std::size_t>(rows[i]) * size, size);
    }
  };
  // A number for each sample, as targets are, is copied without a call.
  if (bytes == sizeof(int64_t)) {
    copy(std::integral_constant<std::size_t, sizeof(int64_t)>{});
  } else {
    copy(bytes);
  }
  return result;
}

/// The same change of each tensor of a batch, the undefined ones left out.
template <class Fn>
Batch changed(const Batch& batch, const Fn& fn) {
  const at::NoGradGuard no_grad;
  Batch result = batch;
  for_each_tensor(result, [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = fn(tensor);
  });
  return result;
}

}  // namespace

Batch joined_rows(std::span<const Batch> batches, const std::string& who, const SampleNames& names) {
  const at::NoGradGuard no_grad;
  const Batch& first = batches.front();
  if (batches.size() == 1) return first;
  Batch result{.global_size = 0};
  result.input = joined(batches, "input", who, names, [](const Batch& b) -> const at::Tensor& { return b.input; });
  result.target = joined(batches, "target", who, names, [](const Batch& b) -> const at::Tensor& { return b.target; });
  result.ids = joined(batches, "ids", who, names, [](const Batch& b) -> const at::Tensor& { return b.ids; });
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    const bool alike = batch.more.size() == first.more.size() &&
                       std::all_of(first.more.begin(), first.more.end(),
                                   [&](const auto& named) { return batch.more.count(named.first) == 1; });
    if (!alike) {
      throw DataError("LS-SAMPLE-SHAPE",
                      fmt::format("{} gives samples with different names in Batch::more: {} and {}", who,
                                  sample_text(batches, 0, names), sample_text(batches, i, names)),
                      "give all samples the same names, in map()");
    }
    result.padding = batch.padding;
  }
  for (const auto& named : first.more) {
    const std::string& name = named.first;
    result.more[name] =
        joined(batches, name.c_str(), who, names, [&](const Batch& b) -> const at::Tensor& { return b.more.at(name); });
  }
  return result;
}

Batch padded_rows(std::span<const Batch> batches, const lockstep::data::PadOptions& pad, const std::string& who,
                  const SampleNames& names) {
  std::vector<Batch> padded(batches.begin(), batches.end());
  const auto fill_up = [&](const std::function<at::Tensor*(Batch&)>& get) {
    int64_t longest = pad.length;
    for (std::size_t i = 0; i < padded.size(); ++i) {
      const at::Tensor* const tensor = get(padded[i]);
      if (!tensor || !tensor->defined() || tensor->dim() < 2) continue;
      if (pad.length > 0 && tensor->size(1) > pad.length) {
        throw DataError("LS-SAMPLE-SHAPE",
                        fmt::format("{} has the length {} in {} where PadOptions::length is {}", who, tensor->size(1),
                                    sample_text(padded, i, names), pad.length),
                        "give a larger length, or cut samples in map()");
      }
      longest = std::max(longest, tensor->size(1));
    }
    for (Batch& batch : padded) {
      at::Tensor* const tensor = get(batch);
      if (!tensor || !tensor->defined() || tensor->dim() < 2 || tensor->size(1) == longest) continue;
      std::vector<int64_t> sizes = tensor->sizes().vec();
      sizes[1] = longest;
      at::Tensor whole = at::full(sizes, pad.value, tensor->options());
      whole.narrow(1, 0, tensor->size(1)).copy_(*tensor);
      *tensor = std::move(whole);
    }
  };
  const at::NoGradGuard no_grad;
  fill_up([](Batch& batch) { return &batch.input; });
  fill_up([](Batch& batch) { return &batch.target; });
  for (const auto& named : padded.front().more) {
    const std::string name = named.first;
    fill_up([&](Batch& batch) {
      const auto found = batch.more.find(name);
      return found == batch.more.end() ? nullptr : &found->second;
    });
  }
  return joined_rows(padded, who, names);
}

Batch zipped(Batch first, const Batch& second, const std::string& name) {
  first.more[name + "/input"] = second.input;
  if (second.target.defined()) first.more[name + "/target"] = second.target;
  for (const auto& [inner, tensor] : second.more) first.more[name + "/" + inner] = tensor;
  return first;
}

Batch joined_most(std::vector<Batch> batches, const std::string& who,
                  const std::function<std::string(int64_t id)>& name_of,
                  FunctionRef<void(const std::exception_ptr&)> leave_out) {
  const SampleNames names{name_of};
  try {
    return joined_rows(batches, who, names);
  } catch (const DataError&) {  // which of them do not fit is found out below
  }
  const auto misfit = [&](const Batch& a, const Batch& b) -> std::exception_ptr {
    try {
      joined_rows(std::vector<Batch>{a, b}, who, names);
      return nullptr;
    } catch (const DataError&) {
      return std::current_exception();
    }
  };
  struct Form {  // batches of the same dtypes and shapes
    std::vector<Batch> batches;
    int64_t rows = 0;
  };
  std::vector<Form> forms;
  for (Batch& one : batches) {
    const auto same =
        std::find_if(forms.begin(), forms.end(), [&](const Form& form) { return !misfit(form.batches.front(), one); });
    Form& form = same == forms.end() ? forms.emplace_back() : *same;
    form.rows += one.size();
    form.batches.push_back(std::move(one));
  }
  // The first one of equals.
  const auto most =
      std::max_element(forms.begin(), forms.end(), [](const Form& a, const Form& b) { return a.rows < b.rows; });
  for (auto form = forms.begin(); form != forms.end(); ++form) {
    if (form == most) continue;
    const std::exception_ptr why = misfit(most->batches.front(), form->batches.front());
    for (int64_t row = 0; row < form->rows; ++row) leave_out(why);
  }
  return joined_rows(most->batches, who, names);
}

bool is_plain(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain = [] {
    const c10::InferenceMode normal(false);  // whichever mode the first call is made in
    return at::empty({0}, at::kCPU).key_set();
  }();
  return tensor.key_set() == plain && !tensor.requires_grad();
}

Batch rows_of(const Batch& batch, int64_t begin, int64_t count) {
  Batch result = changed(batch, [&](const at::Tensor& tensor) { return view_of_rows(tensor, begin, count); });
  result.padding = 0;
  return result;
}

Batch rows_at(const Batch& batch, std::span<const int64_t> rows) {
  at::Tensor index;
  const auto [lowest, highest] = std::minmax_element(rows.begin(), rows.end());
  return changed(batch, [&](const at::Tensor& tensor) {
    const bool has_all = rows.empty() || (*lowest >= 0 && *highest < rows_of(tensor));
    if (has_all && is_plain(tensor) && tensor.is_contiguous()) return copied_rows(tensor, rows);
    if (!index.defined()) index = ids_tensor(rows);
    return at::index_select(tensor, 0, index);
  });
}

Batch no_rows(const Batch& like) {
  Batch result = changed(like, [](const at::Tensor& tensor) { return at::empty_like(tensor.narrow(0, 0, 0)); });
  result.padding = 0;
  return result;
}

void pad_rows(Batch& batch, int64_t count, const Batch& like) {
  if (count == 0) return;
  const std::vector<int64_t> first(static_cast<std::size_t>(count), 0);
  Batch padding = rows_at(like, first);
  padding.ids = at::full({count}, -1, at::kLong);
  if (padding.target.defined() && padding.target.scalar_type() == at::kLong) padding.target.fill_(kIgnoredTarget);
  const int64_t global_size = batch.global_size;
  const Batch both[] = {batch, padding};
  batch = batch.size() == 0 ? padding : joined_rows(both, "padding");
  batch.global_size = global_size;
  batch.padding = count;
}

void check_rows(const Batch& batch, int64_t rows, const std::string& who) {
  const auto fits = [&](const at::Tensor& tensor) {
    return rows_of(tensor) == rows && tensor.device().is_cpu() && tensor.layout() == at::kStrided;
  };
  std::string wrong;
  if (!fits(batch.input)) wrong = fmt::format("input {}", text_of(batch.input));
  if (wrong.empty() && batch.target.defined() && !fits(batch.target))
    wrong = fmt::format("input {} and target {}", text_of(batch.input), text_of(batch.target));
  for (const auto& [name, tensor] : batch.more) {
    if (wrong.empty() && !fits(tensor)) wrong = fmt::format("'{}' {}", name, text_of(tensor));
  }
  if (wrong.empty()) return;
  throw DataError("LS-SAMPLE-SHAPE", fmt::format("{} gave {} for {} row{}", who, wrong, rows, rows == 1 ? "" : "s"),
                  "give dense tensors in the host's memory, each with one row for each sample");
}

uint64_t mixed(uint64_t a, uint64_t b) {
  const uint64_t words[] = {a, b};
  return XXH3_64bits(words, sizeof words);
}

uint64_t digest_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor bytes = tensor.detach().contiguous();
  uint64_t digest = static_cast<uint64_t>(tensor.scalar_type());
  for (const int64_t size : tensor.sizes()) digest = mixed(digest, static_cast<uint64_t>(size));
  return mixed(digest, bytes.numel() == 0 ? 0 : XXH3_64bits(bytes.data_ptr(), bytes.nbytes()));
}

uint64_t digest_of(const Batch& batch) {
  uint64_t digest = mixed(digest_of(batch.input), digest_of(batch.target));
  for (const auto& [name, tensor] : batch.more)
    digest = mixed(mixed(digest, XXH3_64bits(name.data(), name.size())), digest_of(tensor));
  return digest;
}

at::Tensor ids_tensor(std::span<const int64_t> ids) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

}  // namespace lockstep::internal::data
