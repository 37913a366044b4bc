#include "lockstep/data/deal/row_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/rows.h"
#include "lockstep/data/stages/stage_times.h"

namespace lockstep::internal::inline data {

using lockstep::data::StreamPosition;

void check_element(const Batch& element, const std::string& who) {
  const bool has_rows = element.input.defined() && element.input.dim() > 0;
  check_rows(element, has_rows ? element.input.size(0) : 1, who);
  const at::Tensor& ids = element.ids;
  if (ids.defined() && (ids.layout() != at::kStrided || !ids.device().is_cpu() || ids.scalar_type() != at::kLong ||
                        ids.dim() != 1 || ids.size(0) != element.input.size(0))) {
    throw DataError("LS-SAMPLE-SHAPE",
                    fmt::format("{} gave the ids {} for an input {}", who, text_of(ids), text_of(element.input)),
                    "give Batch::ids as int64 [rows] in the host's memory, one for each row");
  }
  Batch copy = element;
  for_each_tensor(copy, [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_quantized()) return;
    throw DataError("LS-SAMPLE-SHAPE", fmt::format("{} gave a quantized tensor, {}", who, text_of(tensor)),
                    "give its dequantize() or int_repr()");
  });
}

RowFeed::RowFeed(const lockstep::data::Stream& stream, const lockstep::data::StreamPass& pass,
                 const StreamPosition& position)
    : source_(stream.source()), who_(source_->describe()), skipped_(pass.skipped) {
  int64_t used = 0;
  StreamPosition there;
  if (!position.empty()) {
    PositionParts parts(position, who_);
    used = parts.number();
    there = parts.inner();
    parts.end();
  }
  reader_ = open_stage(source_, pass, there);
  if (used == 0 || !has_rows()) return;
  if (used > rows_) {
    throw DataError("LS-DATA-CHANGED",
                    fmt::format("the cursor is behind row {} of an element of {}, which has {}", used, who_, rows_),
                    "give the data that the cursor came from, or begin at the first epoch");
  }
  used_ = used;
}

bool RowFeed::has_rows() {
  while (used_ == rows_ && !ended_) {
    before_ = reader_->position();
    Batch element;
    if (!reader_->next(element)) {
      ended_ = true;
      break;
    }
    if (!element.ids.defined()) {
      throw DataError("LS-SOURCE", fmt::format("{} gave an element without ids", who_),
                      "set Batch::ids, one for each row");
    }
    check_element(element, who_);
    element_ = std::move(element);
    rows_ = element_.size();
    used_ = 0;
  }
  return !ended_;
}

std::optional<Batch> RowFeed::take(int64_t count) {
  std::vector<Batch> pieces;
  taken_ = 0;
  while (taken_ < count && has_rows()) {
    const int64_t some = std::min(count - taken_, rows_ - used_);
    pieces.push_back(some == rows_ ? element_ : rows_of(element_, used_, some));
    used_ += some;
    taken_ += some;
  }
  if (pieces.empty()) return std::nullopt;
  const auto name_of = [this](int64_t id) { return source_->name_of(id); };
  if (!skipped_) return joined_rows(pieces, who_, {name_of});
  return joined_most(std::move(pieces), who_, name_of, [&](const std::exception_ptr& error) { skipped_->add(error); });
}

std::vector<Batch> RowFeed::take_each(int64_t count) {
  std::vector<Batch> rows;
  for (taken_ = 0; taken_ < count && has_rows(); ++taken_, ++used_) {
    rows.push_back(copied(rows_of(element_, used_, 1)));
  }
  return rows;
}

std::vector<Batch> RowFeed::take_each_of_element() {
  return has_rows() ? take_each(rows_ - used_) : std::vector<Batch>();
}

std::optional<Batch> RowFeed::take_element() {
  if (!has_rows()) return std::nullopt;
  return take(rows_ - used_);
}

StreamPosition RowFeed::position() const {
  StreamPosition position{used_ == rows_ ? 0 : used_};
  append(position, used_ == rows_ ? reader_->position() : before_);
  return position;
}

}  // namespace lockstep::internal::data
