// Data: data sets, streams, what they are made from, and how they are dealt to replicas. docs/data.md describes them.
#pragma once

// What a loop uses: samples in any order, samples in sequence, and the batches of either.
#include "lockstep/data/batch.h"                // IWYU pragma: export
#include "lockstep/data/cursor.h"               // IWYU pragma: export
#include "lockstep/data/dataset.h"              // IWYU pragma: export
#include "lockstep/data/distribute_options.h"   // IWYU pragma: export
#include "lockstep/data/distributed_dataset.h"  // IWYU pragma: export
#include "lockstep/data/stream.h"               // IWYU pragma: export

// Where samples come from: memory, files of each format, images, text, and data sets of torch::data.
#include "lockstep/data/files.h"                  // IWYU pragma: export
#include "lockstep/data/sources/images.h"         // IWYU pragma: export
#include "lockstep/data/sources/record_files.h"   // IWYU pragma: export
#include "lockstep/data/sources/records.h"        // IWYU pragma: export
#include "lockstep/data/sources/sources.h"        // IWYU pragma: export
#include "lockstep/data/sources/tokenizer.h"      // IWYU pragma: export
#include "lockstep/data/sources/torch_dataset.h"  // IWYU pragma: export
