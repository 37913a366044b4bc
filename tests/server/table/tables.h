// Tables for tests: rules by LibTorch's options, pushes to the servers that rows lie on, and all rows of some servers.
#pragma once

#include <torch/types.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/table/row_hash.h"
#include "lockstep/server/table/row_table.h"

namespace lockstep::testing {

using internal::RowPush;
using internal::RowTable;

template <class Options>
std::shared_ptr<const internal::RowRule> row_rule(const Options& options) {
  return std::make_shared<const internal::RowRule>(internal::make_rule(options), "t");
}

/// A gradient for each id; float64 for a table of float64.
struct Gradients {
  std::vector<int64_t> ids;
  torch::Tensor values;
};

inline Gradients drawn_gradients(std::mt19937_64& random, int64_t rows, int64_t count, int64_t dim) {
  Gradients drawn;
  for (int64_t k = 0; k < count; ++k) drawn.ids.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows)));
  std::normal_distribution<float> normal;
  drawn.values = torch::empty({count, dim});
  for (int64_t i = 0; i < drawn.values.numel(); ++i) drawn.values.data_ptr<float>()[i] = normal(random);
  return drawn;
}

/// One table that is spread over some servers.
class SpreadTable {
 public:
  SpreadTable(const EmbeddingOptions& options, std::shared_ptr<const internal::RowRule> rule, int64_t servers = 1,
              uint64_t seed = 7)
      : options_(options), number_(internal::table_number(options.name)) {
    for (int64_t server = 0; server < servers; ++server) {
      parts.push_back(std::make_unique<RowTable>(options, seed, server, servers));
      if (rule) parts.back()->use(rule);
    }
  }

  int64_t server_of(int64_t id) const {
    return internal::server_of(internal::row_hash(number_, id), static_cast<int64_t>(parts.size()));
  }

  void push(const Gradients& gradients, double rate, int64_t position, internal::Clip clip = {}) {
    for (int64_t server = 0; server < std::ssize(parts); ++server) {
      std::vector<int64_t> ids, at;
      for (int64_t k = 0; k < std::ssize(gradients.ids); ++k) {
        if (server_of(gradients.ids[k]) != server) continue;
        ids.push_back(gradients.ids[k]);
        at.push_back(k);
      }
      const torch::Tensor values = gradients.values.index_select(0, torch::tensor(at, torch::kLong)).contiguous();
      parts[server]->apply({ids, internal::address_of(values), rate, position, clip});
    }
  }

  /// The weights of these rows, as a tensor of the table's dtype.
  torch::Tensor weights(const std::vector<int64_t>& ids) const {
    const torch::Tensor all = torch::empty({std::ssize(ids), options_.dim}, options_.dtype);
    const int64_t bytes = options_.dim * static_cast<int64_t>(all.element_size());
    for (int64_t k = 0; k < std::ssize(ids); ++k)
      parts[server_of(ids[k])]->look_up({&ids[k], 1}, internal::memory_of(all) + k * bytes);
    return all;
  }

  int64_t size() const {
    int64_t size = 0;
    for (const auto& part : parts) size += part->size();
    return size;
  }

  std::vector<std::unique_ptr<RowTable>> parts;

 private:
  EmbeddingOptions options_;
  uint64_t number_;
};

/// A row as a cut has it, for comparisons: weights, slots by name, position and count.
struct WholeRow {
  std::vector<double> numbers;
  int64_t position = 0;
  int64_t updates = 0;
  friend bool operator==(const WholeRow&, const WholeRow&) = default;
};

/// All rows of the cut, in pieces of `piece`.
inline void add_rows(const internal::TableCut& cut, std::map<int64_t, WholeRow>& all, int64_t piece = 100) {
  for (int64_t first = 0; first < cut.size(); first += piece) {
    const internal::SavedRows rows = cut.rows(first, piece);
    for (int64_t k = 0; k < rows.ids.numel(); ++k) {
      WholeRow row;
      const auto append = [&](const torch::Tensor& values) {
        const torch::Tensor numbers = values[k].to(torch::kDouble);
        row.numbers.insert(row.numbers.end(), numbers.data_ptr<double>(), numbers.data_ptr<double>() + numbers.numel());
      };
      append(rows.weights);
      for (const auto& [name, values] : rows.slots) append(values);
      row.position = rows.positions[k].item<int64_t>();
      if (rows.updates.defined()) row.updates = rows.updates[k].item<int64_t>();
      EXPECT_TRUE(all.emplace(rows.ids[k].item<int64_t>(), row).second) << "a row is there twice";
    }
  }
}

inline std::map<int64_t, WholeRow> rows_of(const SpreadTable& table) {
  std::map<int64_t, WholeRow> all;
  for (const auto& part : table.parts) add_rows(part->cut(), all);
  return all;
}

}  // namespace lockstep::testing
