#include "lockstep/checkpoint/tables/saved_table_reader.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline checkpoint {

std::pair<std::string, std::string> table_and_part(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string::npos) return {name, ""};
  return {name.substr(0, slash), name.substr(slash + 1)};
}

SavedTableReader::SavedTableReader(const CheckpointReader& reader, const std::string& table) : reader_(reader) {
  const auto& tensors = reader.manifest().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].kind != kRowsKind) continue;
    const auto [name, part] = table_and_part(tensors[i].name);
    if (name != table) continue;
    what_ = fmt::format("{}, table '{}',", reader.file_of(i), shown(table));
    const at::Tensor none = reader.memory_for_rows(i, 0);
    forms_[part] = {none.scalar_type(), reader.place(i).shape};
    parts_[part] = {.tensor = i};
  }
  if (what_.empty()) what_ = fmt::format("the checkpoint of table '{}'", shown(table));
}

at::Tensor SavedTableReader::next_rows(const std::string& part, int64_t count) {
  const auto found = parts_.find(part);
  if (found == parts_.end()) throw_damaged(what_, fmt::format("has no '{}'", shown(part)));
  Part& from = found->second;
  at::Tensor rows = reader_.memory_for_rows(from.tensor, count);
  std::span<std::byte> to = host_bytes_to_write(rows);
  while (!to.empty()) {
    if (from.used == from.bytes.size()) {
      if (from.next == reader_.manifest().tensors[from.tensor].checksums.size())
        throw_damaged(what_, fmt::format("has fewer rows of '{}' than its header says", shown(part)));
      reader_.read_piece(from.tensor, from.next++, from.bytes);
      from.used = 0;
    }
    const std::size_t bytes = std::min(to.size(), from.bytes.size() - from.used);
    std::copy_n(from.bytes.data() + from.used, bytes, to.data());
    from.used += bytes;
    to = to.subspan(bytes);
  }
  return rows;
}

std::map<std::string, ReadTable> read_tables(const CheckpointReader& reader, const ServedState& served,
                                             const std::function<bool(const std::string&)>& wants) {
  std::map<std::string, ReadTable> tables;
  for (const std::string& name : served.tables()) {
    const auto record = reader.manifest().run.tables.find(name);
    if (record == reader.manifest().run.tables.end() || !wants(name)) continue;
    ReadTable& table = tables[name];
    table.misfit = served.misfit(name, record->second);
    if (!table.misfit.empty()) continue;
    SavedTableReader rows(reader, name);
    table.rows = served.stage(name, rows);
  }
  return tables;
}

}  // namespace lockstep::internal::checkpoint
