#include "tools/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/reduce/operands.h"
#include "tools/checkpoint/checkpoint_paths.h"
#include "tools/checkpoint/table_diff.h"
#include "tools/console.h"
#include "tools/exit_status.h"

namespace lockstep::tools {

namespace {

namespace fs = std::filesystem;

using internal::CheckpointReader;
using internal::FoundCheckpoint;
using internal::host_files;
using nlohmann::ordered_json;

std::string size_text(uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

uint64_t bytes_of(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& one : fs::directory_iterator(folder, ignored)) bytes += one.is_regular_file() ? one.file_size() : 0;
  return bytes;
}

/// The exit code where a checkpoint is damaged.
int damaged() { return exit_status(kFindings, ExitCode::kDataError); }

/// The first line of an error's text.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string values_text(const internal::RecordedNumbers& one) {
  if (one.real) return fmt::format("{}", *one.real);
  std::string text;
  for (const int64_t value : one.integers) text += fmt::format("{}{}", text.empty() ? "" : " ", value);
  return text;
}

/// A value's name, with its replica where it is that of one.
std::string full_name(const std::string& name, int64_t replica) {
  return replica < 0 ? name : fmt::format("{}, replica {}", name, replica);
}

/// The largest of some numbers; 0 where there are none.
double largest(const at::Tensor& numbers) { return numbers.numel() == 0 ? 0 : numbers.max().item<double>(); }

/// JSON has no text for numbers that are not finite.
ordered_json json_of(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", value);
}

/// How two tensors differ; empty where their bits are equal. A NaN that both have is no element that differs.
std::string difference(const at::Tensor& a, const at::Tensor& b, ordered_json& json) {
  if (internal::same_bits(a, b)) return {};
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    json["forms"] = {internal::shape_text(a), internal::shape_text(b)};
    return fmt::format("{} and {}", internal::shape_text(a), internal::shape_text(b));
  }
  const at::ScalarType wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor differs = a.ne(b) & ~(a.isnan() & b.isnan());
  const int64_t differing = differs.sum().item<int64_t>();
  const at::Tensor sizes = a.to(wide).abs();
  const double change = largest((a.to(wide) - b.to(wide)).abs().masked_select(differs));
  const double scale = largest(sizes.masked_select(sizes.isfinite()));
  json["elements"] = a.numel();
  json["differing"] = differing;
  json["largest_difference"] = json_of(change);
  json["largest_value"] = scale;
  if (differing == 0) return "equal values with other bits: signs of zeros, or NaNs";
  return fmt::format("{} of {} elements, by up to {:.3g} where values are up to {:.3g}", differing, a.numel(), change,
                     scale);
}

std::string text_of(const TableDifference& found) {
  if (!found.forms.empty()) return found.forms;
  std::string text = fmt::format("{} of {} rows that both have", found.differing, found.both);
  if (found.largest > 0) text += fmt::format(", by up to {:.3g} in their weights", found.largest);
  if (found.only_first > 0) text += fmt::format("; {} only in the first", found.only_first);
  if (found.only_second > 0) text += fmt::format("; {} only in the second", found.only_second);
  return text;
}

ordered_json json_of(const TableDifference& found) {
  if (!found.forms.empty()) return {{"forms", found.forms}};
  return {{"rows", found.both},
          {"differing", found.differing},
          {"largest_difference", json_of(found.largest)},
          {"only_in_first", found.only_first},
          {"only_in_second", found.only_second}};
}

}  // namespace

int list_checkpoints(const CheckpointCommandOptions& options) {
  if (!fs::is_directory(options.path)) {
    throw DataError("LS-CHECKPOINT-NONE", fmt::format("there is no folder '{}'", options.path),
                    "name the folder of --checkpoint-dir");
  }
  const fs::path folder = folder_at(options.path);
  const bool is_one = is_checkpoint(folder) || is_begun_checkpoint(folder);
  const auto found = is_one ? std::vector{internal::look_at_checkpoint(host_files(), folder)}
                            : internal::checkpoints_in(host_files(), folder);
  ordered_json json = ordered_json::array();
  std::vector<std::vector<std::string>> rows{{"checkpoint", "step", "bytes", "state"}};
  std::vector<std::string> problems;  // as lines
  int code = 0;
  for (const FoundCheckpoint& one : found) {
    const bool is_begun = !one.problem.empty() && !is_checkpoint(one.path);
    const char* const state = one.problem.empty() ? "whole" : is_begun ? "not complete" : "damaged";
    const std::string problem = is_begun ? missing_text(one.path) : first_line(one.problem);
    if (!problem.empty() && !is_begun) code = damaged();
    if (!problem.empty()) problems.push_back(fmt::format("{}: {}\n", state, problem));
    rows.push_back({one.path.filename().string(), std::to_string(one.step), size_text(bytes_of(one.path)), state});
    json.push_back({{"path", one.path.string()}, {"step", one.step}, {"bytes", bytes_of(one.path)}, {"state", state}});
    if (!problem.empty()) json.back()["problem"] = problem;
  }
  if (options.json) {
    print_json({{"directory", options.path}, {"checkpoints", std::move(json)}});
    return code;
  }
  if (found.empty()) {
    std::fputs(fmt::format("there is no checkpoint in {}\n", options.path).c_str(), stdout);
    return code;
  }
  print_columns(rows);
  for (const std::string& line : problems) std::fputs(line.c_str(), stdout);
  flush_output();
  return code;
}

int show_checkpoint(const CheckpointCommandOptions& options) {
  const fs::path path = checkpoint_at(options.path);
  const CheckpointReader reader(host_files(), path);
  const internal::RunRecord& run = reader.manifest().run;
  const auto& tensors = reader.manifest().tensors;
  if (options.json) {
    ordered_json json{
        {"path", path.string()},    {"format", reader.manifest().format}, {"step", run.step},
        {"library", run.library},   {"platform", run.platform},           {"fingerprint", run.fingerprint},
        {"strategy", run.strategy}, {"replicas", run.replicas},           {"workers", run.workers}};
    json["tensors"] = ordered_json::array();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      json["tensors"].push_back({{"kind", tensors[i].kind},
                                 {"name", tensors[i].name},
                                 {"replica", tensors[i].replica},
                                 {"form", reader.form(i)},
                                 {"bytes", reader.place(i).end - reader.place(i).begin},
                                 {"file", reader.manifest().files[tensors[i].file].name},
                                 {"checksums", tensors[i].checksums}});
    }
    json["numbers"] = ordered_json::array();
    for (const auto& one : run.numbers) {
      json["numbers"].push_back({{"kind", one.kind}, {"name", one.name}});
      if (one.real) {
        json["numbers"].back()["value"] = *one.real;
      } else {
        json["numbers"].back()["value"] = one.integers;
      }
    }
    for (const auto& [name, text] : run.tables) json["tables"][name] = ordered_json::parse(text);
    if (!run.scheduled.empty()) json["scheduled"] = ordered_json::parse(run.scheduled);
    for (const auto& [name, text] : run.data) json["data"][name] = ordered_json::parse(text);
    for (const auto& [name, text] : run.values) json["values"][name] = ordered_json::parse(text);
    print_json(json);
    return 0;
  }
  print_table({{"checkpoint", path.string()},
               {"step", std::to_string(run.step)},
               {"strategy", fmt::format("{}, replicas: {}, workers: {}", run.strategy, run.replicas, run.workers)},
               {"saved by", fmt::format("Lockstep {}, {}", run.library, run.platform)},
               {"fingerprint", run.fingerprint}});
  std::fputs("\n", stdout);
  std::vector<std::vector<std::string>> rows{{"value", "kind", "form"}};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    rows.push_back({full_name(tensors[i].name, tensors[i].replica), tensors[i].kind, reader.form(i)});
  }
  for (const auto& one : run.numbers) rows.push_back({one.name, one.kind, values_text(one)});
  for (const auto& [name, text] : run.tables) rows.push_back({name, "table", text});
  if (!run.scheduled.empty()) rows.push_back({"scheduled", "steps", run.scheduled});
  for (const auto& [name, text] : run.data) rows.push_back({name, "data", text});
  for (const auto& [name, text] : run.values) rows.push_back({name, "value", text});
  print_columns(rows);
  flush_output();
  return 0;
}

int verify_checkpoints(const CheckpointCommandOptions& options) {
  std::vector<fs::path> paths;
  if (is_checkpoint(options.path)) {
    paths.emplace_back(options.path);
  } else {
    for (const FoundCheckpoint& one : internal::checkpoints_in(host_files(), options.path)) {
      if (is_checkpoint(one.path)) paths.push_back(one.path);
    }
  }
  if (paths.empty()) checkpoint_at(options.path);  // throws
  ordered_json json = ordered_json::array();
  int code = 0;
  for (const fs::path& path : paths) {
    std::string problem;
    uint64_t bytes = 0;
    try {
      const CheckpointReader reader(host_files(), path);
      std::vector<std::byte> piece;
      for (std::size_t i = 0; i < reader.manifest().tensors.size(); ++i) {
        if (reader.manifest().tensors[i].kind != internal::kRowsKind) {
          bytes += static_cast<uint64_t>(reader.read(i).nbytes());  // one at a time
          continue;
        }
        for (std::size_t p = 0; p < reader.manifest().tensors[i].checksums.size(); ++p) {
          reader.read_piece(i, p, piece);
          bytes += piece.size();
        }
      }
    } catch (const DataError& error) {
      if (!internal::says_of_file(error)) throw;
      problem = first_line(error.what());
      code = damaged();
    }
    json.push_back({{"path", path.string()}, {"whole", problem.empty()}});
    if (!problem.empty()) json.back()["problem"] = problem;
    if (options.json) continue;
    const std::string text = problem.empty()
                                 ? fmt::format("{}: every byte is right ({})\n", path.string(), size_text(bytes))
                                 : fmt::format("{}: damaged: {}\n", path.string(), problem);
    std::fputs(text.c_str(), stdout);
  }
  if (options.json) print_json({{"checkpoints", std::move(json)}});
  flush_output();
  return code;
}

int diff_checkpoints(const CheckpointCommandOptions& options) {
  const fs::path paths[] = {checkpoint_at(options.path), checkpoint_at(options.other)};
  const CheckpointReader readers[] = {{host_files(), paths[0]}, {host_files(), paths[1]}};
  using Key = std::tuple<std::string, std::string, int64_t>;
  std::map<Key, std::size_t> tensors[2];
  std::map<Key, std::string> others[2];  // as text
  for (const int side : {0, 1}) {
    const internal::Manifest& manifest = readers[side].manifest();
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
      const auto& one = manifest.tensors[i];
      if (one.kind != internal::kRowsKind) tensors[side][{one.kind, one.name, one.replica}] = i;
    }
    for (const auto& one : manifest.run.numbers) others[side][{one.kind, one.name, -1}] = values_text(one);
    for (const auto& [name, text] : manifest.run.tables) others[side][{"table", name, -1}] = text;
    if (!manifest.run.scheduled.empty()) others[side][{"steps", "scheduled", -1}] = manifest.run.scheduled;
    for (const auto& [name, text] : manifest.run.data) others[side][{"data", name, -1}] = text;
    for (const auto& [name, text] : manifest.run.values) others[side][{"value", name, -1}] = text;
  }
  ordered_json json = ordered_json::array();
  std::vector<std::vector<std::string>> rows{{"value", "kind", "difference"}};
  const auto add = [&](const Key& key, const std::string& text, ordered_json more) {
    const auto& [kind, name, replica] = key;
    ordered_json line{{"kind", kind}, {"name", name}, {"replica", replica}};
    line.update(more);
    json.push_back(std::move(line));
    rows.push_back({full_name(name, replica), kind, text});
  };
  const auto compare = [&](const auto& sides, const auto& of_both) {
    for (const int side : {0, 1}) {
      for (const auto& [key, value] : sides[side]) {
        const auto other = sides[1 - side].find(key);
        if (other == sides[1 - side].end()) {
          add(key, side == 0 ? "only in the first" : "only in the second", {{"only_in", paths[side].string()}});
        } else if (side == 0) {
          of_both(key, value, other->second);
        }
      }
    }
  };
  compare(tensors, [&](const Key& key, std::size_t a, std::size_t b) {
    ordered_json more;
    const std::string text = difference(readers[0].read(a), readers[1].read(b), more);
    if (!text.empty()) add(key, text, std::move(more));
  });
  compare(others, [&](const Key& key, const std::string& a, const std::string& b) {
    if (a != b) add(key, fmt::format("{} and {}", a, b), {{"values", {a, b}}});
  });
  for (const auto& [name, record] : readers[0].manifest().run.tables) {
    if (!readers[1].manifest().run.tables.contains(name)) continue;
    const TableDifference found = difference_of_tables(readers[0], readers[1], name);
    if (!found.is_none()) add({internal::kRowsKind, name, -1}, text_of(found), json_of(found));
  }
  const int code = rows.size() > 1 ? 1 : 0;
  if (options.json) {
    print_json({{"first", paths[0].string()}, {"second", paths[1].string()}, {"differences", std::move(json)}});
  } else if (code == 0) {
    std::fputs("both have the same values, bit for bit\n", stdout);
  } else {
    print_columns(rows);
  }
  flush_output();
  return code;
}

}  // namespace lockstep::tools
