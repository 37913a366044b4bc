// The names of data, from lockstep/data.h alone. headers_test.sh compiles this file and runs nothing of it.
#include "lockstep/data.h"

using lockstep::Batch;
using lockstep::DistributeOptions;
using lockstep::PerReplica;
using lockstep::data::csv;
using lockstep::data::Dataset;
using lockstep::data::digits;
using lockstep::data::DistributedDataset;
using lockstep::data::image_folder;
using lockstep::data::Stream;
using lockstep::data::tf_records;
using lockstep::data::Tokenizer;
