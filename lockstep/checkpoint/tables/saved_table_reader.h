// The rows of a table in a checkpoint, read in order and in bounded memory.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/strategy/served_state.h"

namespace lockstep::internal::inline checkpoint {

/// Of each tensor that is read it has one piece in memory, whose checksum was right. The reader outlives it.
class SavedTableReader final : public SavedTableSource {
 public:
  SavedTableReader(const CheckpointReader& reader, const std::string& table);

  const std::string& what() const override { return what_; }
  const std::map<std::string, Form>& forms() const override { return forms_; }
  at::Tensor next_rows(const std::string& part, int64_t count) override;

 private:
  struct Part {
    std::size_t tensor = 0;             // of the manifest
    std::size_t next = 0;               // the piece that is read next
    std::size_t used = 0;               // of the bytes
    std::vector<std::byte> bytes = {};  // of the piece before that
  };

  const CheckpointReader& reader_;
  std::string what_;
  std::map<std::string, Form> forms_;
  std::map<std::string, Part> parts_;
};

/// The name of the table that a tensor of kRowsKind is of, and what it has of it: "users" and "weights".
std::pair<std::string, std::string> table_and_part(const std::string& name);

/// Reads the rows of the tables that the program has and that fit, of those that `wants` accepts. Nothing is changed.
std::map<std::string, ReadTable> read_tables(const CheckpointReader& reader, const ServedState& served,
                                             const std::function<bool(const std::string&)>& wants);

}  // namespace lockstep::internal::checkpoint
