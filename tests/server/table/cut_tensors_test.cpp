// The rows of a cut as the tensors of a file, and back into tables on any number of servers.
#include "lockstep/server/table/cut_tensors.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/tensors/host_bytes.h"
#include "tests/server/table/tables.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using internal::load_rows;
using internal::SavedTableSource;
using internal::ServedTensor;
using internal::TableCut;
using internal::tensors_of;
using testing::drawn_gradients;
using testing::expect_error;
using testing::row_rule;
using testing::rows_of;
using testing::SpreadTable;
using torch::Tensor;
using torch::optim::AdamOptions;

using Tensors = std::map<std::string, Tensor>;

/// What a tensor of a cut writes, asked for in pieces of `piece` bytes.
Tensor written(const ServedTensor& tensor, std::size_t piece) {
  Tensor all = torch::empty(tensor.sizes, tensor.dtype);
  const auto bytes = internal::host_bytes_to_write(all);
  for (std::size_t at = 0; at < bytes.size(); at += piece)
    tensor.read(at, bytes.subspan(at, std::min(piece, bytes.size() - at)));
  return all;
}

/// The tensors of a table on one server, by their names without the table's.
Tensors tensors_in(SpreadTable& table, std::size_t piece) {
  Tensors all;
  for (const ServedTensor& one : tensors_of(std::make_shared<TableCut>(table.parts.at(0)->cut())))
    all[one.name.substr(one.name.rfind('/') + 1)] = written(one, piece);
  return all;
}

class Source final : public SavedTableSource {
 public:
  explicit Source(const Tensors& tensors) : tensors_(tensors) {
    for (const auto& [part, rows] : tensors) forms_[part] = {rows.scalar_type(), rows.sizes().vec()};
  }
  const std::string& what() const override { return what_; }
  const std::map<std::string, Form>& forms() const override { return forms_; }
  Tensor next_rows(const std::string& part, int64_t count) override {
    const int64_t first = std::exchange(used_[part], used_[part] + count);
    return tensors_.at(part).narrow(0, first, count).contiguous();
  }

 private:
  const Tensors tensors_;
  const std::string what_ = "a test's table";
  std::map<std::string, Form> forms_;
  std::map<std::string, int64_t> used_;
};

const EmbeddingOptions kOptions{.name = "t", .rows = 3000, .dim = 5, .admit_after = 2};

void train(SpreadTable& table, int64_t first, int64_t steps) {
  for (int64_t step = first; step < first + steps; ++step) {
    std::mt19937_64 random(static_cast<uint64_t>(step));
    table.push(drawn_gradients(random, kOptions.rows, 500, kOptions.dim), 0.1, step);
  }
}

TEST(CutTensors, GoBackIntoAnyNumberOfServers) {
  SpreadTable straight(kOptions, row_rule(AdamOptions(0.05)));
  train(straight, 1, 20);
  const Tensors saved = tensors_in(straight, 7);
  EXPECT_EQ(saved.at("ids").numel(), straight.size());
  EXPECT_EQ(saved.at("counted_ids").numel(), straight.parts[0]->counted());
  EXPECT_TRUE(torch::equal(saved.at("ids"), std::get<0>(saved.at("ids").sort())));
  for (const auto& [part, rows] : tensors_in(straight, 1 << 20)) EXPECT_TRUE(torch::equal(rows, saved.at(part)));
  for (const int64_t servers : {1, 2, 5}) {
    SpreadTable restored(kOptions, row_rule(AdamOptions(0.05)), servers);
    for (const auto& part : restored.parts) {
      Source source(saved);
      load_rows(*part, part->format(), source);
    }
    EXPECT_EQ(rows_of(restored), rows_of(straight));
    SpreadTable went_on(kOptions, row_rule(AdamOptions(0.05)));
    train(went_on, 1, 25);
    train(restored, 21, 5);
    EXPECT_EQ(rows_of(restored), rows_of(went_on));
  }
}

TEST(CutTensors, OfRowsWithoutAllThatTheyNeedAreRefused) {
  SpreadTable table(kOptions, row_rule(AdamOptions(0.05)));
  train(table, 1, 8);
  const Tensors saved = tensors_in(table, 4096);
  const auto refused = [&](Tensors broken, std::initializer_list<std::string_view> values) {
    SpreadTable other(kOptions, row_rule(AdamOptions(0.05)));
    Source source(broken);
    expect_error<DataError>([&] { load_rows(*other.parts[0], other.parts[0]->format(), source); },
                            "LS-CHECKPOINT-DAMAGED", values);
  };
  for (const char* const part : {"ids", "positions", "weights", "exp_avg", "exp_avg_sq", "updates", "counted_pushes"}) {
    Tensors broken = saved;
    broken.erase(part);
    refused(broken, {std::string("'") + part + "'"});
    broken = saved;
    broken[part] = broken[part].narrow(0, 0, broken[part].size(0) - 1);
    refused(broken, {});
    if (std::string(part) != "ids") {
      broken = saved;
      broken[part] = broken[part].to(torch::kInt);
      refused(broken, {std::string("'") + part + "'"});
    }
  }
  Tensors broken = saved;
  broken["ids"] = broken["ids"].clone();
  broken["ids"][3] = broken["ids"][2];
  refused(broken, {"behind row"});
  broken = saved;
  broken["updates"] = broken["updates"].clone();
  broken["updates"][1] = -1;
  refused(broken, {"count -1"});
}

TEST(CutTensors, OfAnEmptyTableHaveNoRows) {
  SpreadTable table(kOptions, row_rule(AdamOptions(0.05)));
  const Tensors saved = tensors_in(table, 64);
  EXPECT_EQ(saved.at("weights").sizes(), (std::vector<int64_t>{0, 5}));
  SpreadTable other(kOptions, row_rule(AdamOptions(0.05)));
  Source source(saved);
  load_rows(*other.parts[0], other.parts[0]->format(), source);
  EXPECT_EQ(other.size(), 0);
}

}  // namespace
}  // namespace lockstep
