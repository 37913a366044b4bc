#include "tools/checkpoint/table_diff.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/tables/saved_table_reader.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::tools {

namespace {

/// The rows of one kind in their order: those that are kept, or those that are only counted.
class Walk {
 public:
  Walk(const internal::CheckpointReader& reader, const std::string& table, const std::string& prefix)
      : source_(reader, table), ids_(prefix + "ids") {
    for (const auto& [part, form] : source_.forms()) {
      const bool is_counted = part.starts_with("counted_");
      if (is_counted != prefix.empty() && part != ids_) parts_.push_back(part);
      if (part == ids_) left_ = form.sizes.empty() ? 0 : form.sizes.front();
    }
    refill();
  }

  bool is_over() const { return next_ == ids().size(); }
  int64_t id() const { return ids()[next_]; }
  void pass() {
    if (++next_ == ids().size()) refill();
  }
  /// The present row of each part.
  std::map<std::string, at::Tensor> row() const {
    std::map<std::string, at::Tensor> row;
    for (const auto& [part, rows] : rows_) row.emplace(part, rows[static_cast<int64_t>(next_)]);
    return row;
  }

 private:
  static constexpr int64_t kRowsAtOnce = 4096;

  std::span<const int64_t> ids() const { return internal::host_numbers<int64_t>(now_); }
  void refill() {
    const int64_t count = std::min(kRowsAtOnce, left_);
    left_ -= count;
    next_ = 0;
    now_ = at::empty({0}, at::kLong);
    if (count == 0) return;
    now_ = source_.next_rows(ids_, count);
    for (const std::string& part : parts_) rows_[part] = source_.next_rows(part, count);
  }

  internal::SavedTableReader source_;
  const std::string ids_;
  std::vector<std::string> parts_;
  int64_t left_ = 0;
  at::Tensor now_;
  std::map<std::string, at::Tensor> rows_;
  std::size_t next_ = 0;
};

/// What the parts of a table are, without their numbers of rows.
std::string forms_of(const internal::CheckpointReader& reader, const std::string& table) {
  std::string text;
  const internal::SavedTableReader source(reader, table);
  for (const auto& [part, form] : source.forms()) {
    if (part.starts_with("counted_")) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", internal::shown(part), c10::toString(form.dtype));
    if (form.sizes.size() > 1) text += fmt::format(" [{}]", form.sizes.back());
  }
  return text;
}

void compare(Walk& first, Walk& second, TableDifference& difference) {
  while (!first.is_over() || !second.is_over()) {
    if (second.is_over() || (!first.is_over() && first.id() < second.id())) {
      ++difference.only_first;
      first.pass();
      continue;
    }
    if (first.is_over() || second.id() < first.id()) {
      ++difference.only_second;
      second.pass();
      continue;
    }
    ++difference.both;
    bool differs = false;
    const auto theirs = second.row();
    for (const auto& [part, mine] : first.row()) {
      const at::Tensor& other = theirs.at(part);
      if (std::ranges::equal(internal::host_bytes(mine), internal::host_bytes(other))) continue;
      differs = true;
      if (part == "weights")
        difference.largest =
            std::max(difference.largest, (mine.to(at::kDouble) - other.to(at::kDouble)).abs().max().item<double>());
    }
    difference.differing += differs ? 1 : 0;
    first.pass();
    second.pass();
  }
}

}  // namespace

TableDifference difference_of_tables(const internal::CheckpointReader& first, const internal::CheckpointReader& second,
                                     const std::string& table) {
  TableDifference difference;
  if (const auto a = forms_of(first, table), b = forms_of(second, table); a != b) {
    difference.forms = fmt::format("{} and {}", a, b);
    return difference;
  }
  for (const char* const prefix : {"", "counted_"}) {
    Walk a(first, table, prefix);
    Walk b(second, table, prefix);
    compare(a, b, difference);
  }
  return difference;
}

}  // namespace lockstep::tools
