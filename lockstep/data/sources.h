// Data sets that come with the library: one that it makes itself, MNIST's files, and text.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// An image data set's two parts. Inputs are float32 [n, 1, 28, 28], white on black, about zero mean and unit variance;
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

/// A text's two parts, as bytes. A sample is a window: inputs int64 [n, context], numbers of bytes in `vocabulary`, and
/// targets of the same shape, the byte after each of them.
struct Text {
  Dataset train;
  Dataset evaluate;
  std::string vocabulary;  // the different bytes of the text, ascending
};

/// A file's text: its first 90 % train, the rest evaluates. Windows lie side by side, so that an epoch foretells each
/// byte once; what does not fill a window at the end of a part is left out. A DataError names a file that is missing,
/// not a plain one, or too short for one window in each part; memory is taken as data arrives.
Text text(const std::string& path, int64_t context);

}  // namespace lockstep::data
