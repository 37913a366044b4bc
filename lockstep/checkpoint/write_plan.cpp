#include "lockstep/checkpoint/write_plan.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/folder/file_names.h"
#include "lockstep/checkpoint/formats/tensor_file.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline checkpoint {

namespace {

/// The tensor's name in its file.
std::string key_of(const ImageTensor& one) {
  return one.replica < 0 ? one.name : fmt::format("{}@{}", one.name, one.replica);
}

void add_file(WritePlan& plan, std::string_view stem, std::string_view kind, const Image& image) {
  NamedTensors named;
  std::vector<const ImageTensor*> given;
  for (const ImageTensor& one : image.tensors) {
    if (one.kind != kind) continue;
    named.emplace_back(key_of(one), one.value);
    given.push_back(&one);
  }
  if (named.empty()) return;
  FileLayout layout = layout_of(named, {{"format", "pt"}, {kMadeBy, image.run.library}});
  for (std::size_t i = 0; i < named.size(); ++i) {
    PlannedTensor tensor{.recorded = {.kind = given[i]->kind,
                                      .name = given[i]->name,
                                      .replica = given[i]->replica,
                                      .file = plan.files.size(),
                                      .key = named[i].first,
                                      .dtype = dtype_name(named[i].second.scalar_type()),
                                      .aggregation = given[i]->aggregation},
                         .value = plain_and_contiguous(named[i].second.detach()),
                         .offset = layout.offsets[i]};
    tensor.is_borrowed = given[i]->is_borrowed && tensor.value.is_alias_of(given[i]->value);
    tensor.recorded.checksums.resize(pieces_of(tensor.value.nbytes(), kPieceBytes));
    plan.tensors.push_back(std::move(tensor));
  }
  plan.files.push_back({std::string(stem), std::move(layout.head), layout.bytes});
}

void add_tables(WritePlan& plan, const Image& image) {
  NamedTensors forms;
  for (const ServedTensor& one : image.rows) forms.emplace_back(one.name, tensor_of_form(one.dtype, one.sizes));
  if (forms.empty()) return;
  FileLayout layout = layout_of(forms, {{"format", "pt"}, {kMadeBy, image.run.library}});
  for (std::size_t i = 0; i < forms.size(); ++i) {
    PlannedTensor tensor{.recorded = {.kind = kRowsKind,
                                      .name = forms[i].first,
                                      .file = plan.files.size(),
                                      .key = forms[i].first,
                                      .dtype = dtype_name(image.rows[i].dtype)},
                         .value = forms[i].second,
                         .read = image.rows[i].read,
                         .offset = layout.offsets[i]};
    tensor.recorded.checksums.resize(pieces_of(tensor.value.nbytes(), kPieceBytes));
    plan.tensors.push_back(std::move(tensor));
  }
  plan.files.push_back({std::string(kTablesStem), std::move(layout.head), layout.bytes});
}

}  // namespace

WritePlan plan_of(const Image& image) {
  const at::NoGradGuard no_grad;
  WritePlan plan;
  for (const auto& [stem, kind] : kStems) add_file(plan, stem, kind, image);
  add_tables(plan, image);
  std::vector<std::size_t> order(plan.tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const PlannedTensor& first = plan.tensors[a];
    const PlannedTensor& second = plan.tensors[b];
    return std::pair(first.recorded.file, first.offset) < std::pair(second.recorded.file, second.offset);
  });
  for (const std::size_t i : order) {
    const uint64_t bytes = plan.tensors[i].value.nbytes();
    for (std::size_t number = 0; number < plan.tensors[i].recorded.checksums.size(); ++number) {
      const uint64_t begin = number * kPieceBytes;
      plan.pieces.push_back({i, number, begin, std::min(kPieceBytes, bytes - begin)});
    }
  }
  return plan;
}

Share share_of(const WritePlan& plan, int64_t writer, int64_t writers) {
  uint64_t all = 0;
  for (const PlannedPiece& piece : plan.pieces) all += piece.bytes;
  // A piece is of the writer in whose part of all bytes it begins. Integers, so that all hosts agree; 2^50 bytes of
  // state and 2^13 writers are within 64 bits.
  const auto writer_of = [&](uint64_t before) {
    if (all == 0) return int64_t{0};
    return std::min(writers - 1, static_cast<int64_t>(before * static_cast<uint64_t>(writers) / all));
  };
  Share share{plan.pieces.size(), plan.pieces.size()};
  uint64_t before = 0;
  for (std::size_t p = 0; p < plan.pieces.size(); ++p) {
    const int64_t owner = writer_of(before);
    if (owner >= writer && p < share.begin) share.begin = p;
    if (owner > writer) {
      share.end = p;
      break;
    }
    before += plan.pieces[p].bytes;
  }
  return share;
}

std::vector<std::span<const std::byte>> bytes_of(const WritePlan& plan, const Share& share) {
  std::vector<std::span<const std::byte>> bytes;
  for (std::size_t p = share.begin; p < share.end; ++p) {
    const PlannedPiece& piece = plan.pieces[p];
    const PlannedTensor& tensor = plan.tensors[piece.tensor];
    if (tensor.read) {
      bytes.emplace_back();
    } else {
      bytes.push_back(bytes_in(tensor.value).subspan(piece.begin, piece.bytes));
    }
  }
  return bytes;
}

}  // namespace lockstep::internal::checkpoint
