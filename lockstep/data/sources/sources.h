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

/// Images of the digits 0 to 9 that the library draws: strokes, shifted, turned, sheared, of varying thickness, with
/// noise. They are a function of the arguments alone, the same bits on every machine. No file is needed, and it takes
/// about a second. Throws a UsageError for a negative count.
Split digits(int64_t train_count = 10000, int64_t evaluate_count = 2000, uint64_t seed = 1);

/// Reads MNIST's IDX files from a folder, plain or gzip-compressed (*-ubyte or *-ubyte.gz): the `train-` pair for
/// training and the `t10k-` pair for evaluation. Where only the t10k pair is there, its first 80 % are for training and
/// the rest for evaluation. Throws a DataError that names the file and what is wrong with it. Memory grows with the
/// data that is read, not by what a header promises.
Split idx(const std::string& folder);

/// A text's two parts, as bytes. A sample is a window: its inputs are int64 [n, context], the indices of bytes in
/// `vocabulary`; its targets have the same shape and are the byte after each of them.
struct Text {
  Dataset train;
  Dataset evaluate;
  std::string vocabulary;  // the different bytes of the text, ascending
};

/// Reads a text from a file: its first 90 % are for training, the rest for evaluation. Windows lie side by side, so
/// that an epoch predicts each byte once; the bytes at the end of a part that do not fill a window are left out. Throws
/// a DataError that names a file that is missing, is not a plain one, or is too short for one window in each part, and
/// a UsageError for a context below 1. Memory grows with the data that is read.
Text text(const std::string& path, int64_t context);

}  // namespace lockstep::data
