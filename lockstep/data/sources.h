// Data sets that come with the library: one that it makes itself, and MNIST's files.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// A data set's two parts. Inputs are float32 [n, 1, 28, 28], white on black, about zero mean and unit variance;
/// targets int64 [n], 0 to 9.
struct Split {
  Dataset train;
  Dataset evaluate;
};

/// Images of the digits 0 to 9 that are drawn by the library: strokes, shifted, turned, sheared, of varying thickness,
/// with noise. A function of its arguments alone, the same bits everywhere. Needs no file and a second.
Split digits(int64_t train_count = 10000, int64_t evaluate_count = 2000, uint64_t seed = 1);

/// MNIST's IDX files of a folder, plain or gzip-compressed (*-ubyte or *-ubyte.gz): `train-` to train and `t10k-` to
/// evaluate. Where only the t10k pair is there, its first 80 % train and the rest evaluates. A DataError names the file
/// and what is wrong with it; memory is taken as data arrives, never by what a header promises.
Split idx(const std::string& folder);

}  // namespace lockstep::data
