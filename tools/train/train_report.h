// Reports a training run and its results, for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tools/train/train_options.h"

namespace lockstep::tools {

/// The members are the JSON's keys, but for `seconds` and `samples_of_process`.
struct TrainReport {
  std::string model;
  std::string data;
  std::string optimizer;
  std::string strategy;
  int64_t replicas = 0;
  std::vector<std::string> devices;
  int64_t workers = 1;
  std::string engine = "in-process";
  int64_t global_batch = 0;
  uint64_t seed = 0;
  int64_t steps = 0;
  int64_t samples = 0;
  int64_t samples_of_process = 0;  // without those of before a resume
  double seconds = 0;
  double input_stall = 0;  // the share of the time in which the loop waited for its next batch
  double train_loss = 0;   // the mean over the last epoch's steps
  double eval_loss = 0;
  double eval_accuracy = 0;
  std::string weights_sha256;
  std::string optimizer_sha256;
  std::string state_sha256;
  std::string fingerprint;
  std::vector<std::string> findings;
};

/// Fills in what the run was, and what was found in it; after the run.
void describe_run(TrainReport& report, const TrainOptions& options, const Strategy& strategy);

/// Fills in the digests: weights over the mirrored variables, state over every component of the sync-on-read ones, both
/// sorted by name, and the optimizer's slots and step counts.
void digest_state(TrainReport& report, const Strategy& strategy);

std::vector<std::pair<std::string, std::string>> table_of(const TrainReport& report);
std::string json_of(const TrainReport& report);

}  // namespace lockstep::tools
