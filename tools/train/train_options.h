// What `lockstep train` is asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/models/models.h"

namespace lockstep::tools {

struct TrainOptions {
  ModelOptions model = {.dropout = 0.1};
  std::string data = "digits";
  std::string strategy = "mirrored";
  std::string engine = "auto";  // between the workers of multi-worker
  std::string wire = "exact";   // or bfloat16: the numbers of sums between them
  std::string slots = "whole";  // or sliced: what each of them has of the slots
  std::vector<std::string> devices;
  int64_t replicas = 0;
  int64_t threads_per_replica = 1;
  int64_t global_batch = 64;
  int64_t epochs = 0;
  int64_t steps = 0;  // 0: as many as the epochs have
  std::string optimizer = "adam";
  double learning_rate = 0;  // 0: the optimizer's usual one
  uint64_t seed = 0;
  bool factored_gradients = true;  // where gradients can be kept as factors
  int64_t prefetch = 0;            // steps that are read ahead
  bool describe = false;           // print the table of variables before training
  bool quiet = false;              // neither progress nor what the strategy is
  int64_t sample = 0;              // characters to make up at the end
  std::string checkpoint_dir;
  std::string checkpoint_every;  // steps, or a time: "10m"; empty: as often as that is cheap
  bool resume = false;
  std::string export_file;  // of the weights: safetensors, or a state dictionary (.pt, .pth)
  std::string sample_log;
  std::string trace;        // the file
  std::string report;       // the page of HTML
  std::string tensorboard;  // the folder
  std::string json;
};

}  // namespace lockstep::tools
