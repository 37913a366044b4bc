// `lockstep checkpoint export`: the weights of a checkpoint as a plain file.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/exchange.h"
#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/checkpoint/saved_values.h"
#include "lockstep/checkpoint/tables/saved_table_reader.h"
#include "lockstep/checkpoint/tables/table_export.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/checkpoint/checkpoint_paths.h"
#include "tools/console.h"

namespace lockstep::tools {

namespace {

namespace fs = std::filesystem;

using internal::CheckpointReader;
using internal::host_files;
using nlohmann::ordered_json;

/// All values but the optimizers', by name: of those that each replica has, the one that they stand for.
std::map<std::string, at::Tensor> values_of(const CheckpointReader& reader, const std::string& what) {
  std::map<std::string, at::Tensor> values;
  std::map<std::string, std::vector<std::size_t>> of_replicas;
  const auto& tensors = reader.manifest().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].kind == "mirrored") values.emplace(tensors[i].name, reader.read(i));
    if (tensors[i].kind == "on-read") of_replicas[tensors[i].name].push_back(i);
  }
  for (const auto& [name, places] : of_replicas) {
    const auto aggregation = internal::aggregation_of(tensors[places.front()].aggregation, what);
    values.emplace(name, internal::value_of_all(reader.read(places), aggregation));
  }
  return values;
}

/// The names of the moving averages' variables. One of the name A has `<variable>/A` for each variable that it
/// averages, of the variable's shape, and `<the first one>/A_updates`, which counts.
std::set<std::string> averages_in(const CheckpointReader& reader, const std::map<std::string, at::Tensor>& all) {
  constexpr std::string_view kCount = "_updates";
  std::set<std::string> mirrored;
  for (const auto& one : reader.manifest().tensors) {
    if (one.kind == "mirrored") mirrored.insert(one.name);
  }
  const auto is_average = [&](const std::string& variable, const std::string& end) {
    if (!mirrored.contains(variable) || !mirrored.contains(variable + end)) return false;
    const at::Tensor& average = all.at(variable + end);
    return average.is_floating_point() && average.sizes() == all.at(variable).sizes();
  };
  std::set<std::string> averages;
  for (const std::string& count : mirrored) {
    if (!count.ends_with(kCount) || all.at(count).scalar_type() != at::kLong || all.at(count).dim() != 0) continue;
    for (std::size_t slash = count.find('/'); slash != std::string::npos; slash = count.find('/', slash + 1)) {
      const std::string end = count.substr(slash, count.size() - kCount.size() - slash);  // "/A"
      if (!is_average(count.substr(0, slash), end)) continue;
      averages.insert(count);
      for (const std::string& variable : mirrored) {
        if (is_average(variable, end)) averages.insert(variable + end);
      }
    }
  }
  return averages;
}

/// The ids and weights of tables, by their names in the file: of one table "ids" and "weights", of all
/// "users/ids" and so on.
std::map<std::string, std::size_t> rows_of(const CheckpointReader& reader, const std::string& only) {
  std::map<std::string, std::size_t> rows;
  const auto& tensors = reader.manifest().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].kind != internal::kRowsKind) continue;
    const auto [table, part] = internal::table_and_part(tensors[i].name);
    if ((part != "ids" && part != "weights") || (!only.empty() && table != only)) continue;
    rows.emplace(only.empty() ? tensors[i].name : part, i);
  }
  return rows;
}

void print_exported(const CheckpointCommandOptions& options, const fs::path& path,
                    const std::vector<std::string>& names) {
  if (options.json) {
    print_json({{"path", path.string()}, {"file", options.file}, {"tensors", names}});
    return;
  }
  std::fputs(fmt::format("{}: {} of {}\n", options.file,
                         internal::counted(static_cast<int64_t>(names.size()), "tensor"), path.string())
                 .c_str(),
             stdout);
}

/// A state dictionary is made in memory; a safetensors file has rows copied into it.
std::vector<std::string> save(const std::string& file, std::map<std::string, at::Tensor> weights,
                              const CheckpointReader& reader, const std::map<std::string, std::size_t>& rows) {
  const std::string extension = fs::path(file).extension().string();
  std::vector<std::string> names;
  for (const auto& [name, place] : rows) names.push_back(name);
  if (rows.empty() || extension == ".pt" || extension == ".pth") {
    for (const auto& [name, place] : rows) weights.emplace(name, reader.read(place));
    save_tensors(file, weights);
  } else {
    internal::save_with_rows(file, {weights.begin(), weights.end()}, reader, rows);
  }
  for (const auto& [name, value] : weights) names.push_back(name);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

int export_checkpoint(const CheckpointCommandOptions& options) {
  const fs::path path = checkpoint_at(options.path);
  const CheckpointReader reader(host_files(), path);
  const auto rows = options.module.empty() ? rows_of(reader, options.table) : std::map<std::string, std::size_t>();
  if (!options.table.empty()) {
    if (rows.empty()) {
      throw UsageError("LS-FLAG", fmt::format("--table {}: {} has no such table", options.table, path.string()),
                       "give the name that make_embedding was given; `lockstep checkpoint show` lists all names");
    }
    print_exported(options, path, save(options.file, {}, reader, rows));
    return 0;
  }
  const std::map<std::string, at::Tensor> all = values_of(reader, path.string());
  const std::string begin = options.module.empty() ? "" : options.module + ".";
  std::map<std::string, at::Tensor> weights;
  const std::set<std::string> averages = averages_in(reader, all);
  for (const auto& [name, value] : all) {
    if (!name.starts_with(begin) || (!begin.empty() && averages.contains(name))) continue;
    weights.emplace(name.substr(begin.size()), value);
  }
  for (const auto& [other, own] : reader.manifest().run.other_names) {
    // A module's load_state_dict wants a tied tensor under each of its names.
    if (!begin.empty() && other.starts_with(begin) && all.contains(own)) {
      weights.emplace(other.substr(begin.size()), all.at(own));
    }
  }
  if (weights.empty() && !begin.empty()) {
    throw UsageError("LS-FLAG", fmt::format("--module {}: {} has no values of it", options.module, path.string()),
                     "give the name that make_module was given; `lockstep checkpoint show` lists all names");
  }
  print_exported(options, path, save(options.file, std::move(weights), reader, rows));
  return 0;
}

}  // namespace lockstep::tools
