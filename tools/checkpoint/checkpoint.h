// `lockstep checkpoint`: looks into checkpoints.
#pragma once

#include <string>

namespace lockstep::tools {

struct CheckpointCommandOptions {
  std::string path;    // a checkpoint, or a folder with some, of which the newest is meant
  std::string other;   // of diff
  std::string file;    // of export
  std::string module;  // of export: this module's alone; empty: all
  std::string table;   // of export: this table's rows alone; empty: all
  bool json = false;
};

// Each gives the exit code, and throws the library's errors. A checkpoint that is damaged is a finding of list and
// verify, and a DataError of the others.

/// The checkpoints of a folder, or one. Of each the manifest and the headers of its files are read.
int list_checkpoints(const CheckpointCommandOptions& options);
/// What is in one.
int show_checkpoint(const CheckpointCommandOptions& options);
/// Reads every byte; of a folder with checkpoints, those of all.
int verify_checkpoints(const CheckpointCommandOptions& options);
/// What differs between two, and by how much.
int diff_checkpoints(const CheckpointCommandOptions& options);
/// The weights of one as a plain safetensors file, under the names that the module gives them where one is named.
int export_checkpoint(const CheckpointCommandOptions& options);

}  // namespace lockstep::tools
