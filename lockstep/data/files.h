// Data sets of files: CIFAR, CSV, tokens, and images in folders. docs/data-formats.md says what of each format is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sources/images.h"
#include "lockstep/data/sources/sources.h"

namespace lockstep::data {

// Memory grows with the data that is read, never by what a header promises; a DataError names the file and the place in
// it.

struct CifarOptions {
  bool normalize = true;  // float32 of about zero mean and unit variance; otherwise the bytes, uint8
  bool coarse = false;    // CIFAR-100: the 20 coarse classes in place of the 100 fine ones
};

/// CIFAR-10's binary version, from the folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin, or from the
/// one above it. Inputs are [n, 3, 32, 32], targets int64 [n], 0 to 9. The images are kept in memory as bytes.
Split cifar10(const std::string& folder, const CifarOptions& options = {});
/// CIFAR-100's binary version: train.bin and test.bin; targets are 0 to 99, or coarse ones 0 to 19.
Split cifar100(const std::string& folder, const CifarOptions& options = {});

enum class CsvTarget : uint8_t { kClass, kNumber };  // int64, or float32

struct CsvOptions {
  std::vector<std::string> targets = {};  // names of columns, or their numbers, from 0; none: the last column
  std::vector<std::string> inputs = {};   // the same; none: all other columns
  bool header = true;                     // the first row names the columns
  CsvTarget target = CsvTarget::kClass;
  char separator = ',';
  std::optional<float> missing = std::nullopt;  // stands for empty inputs, which are an error without it
};

/// Numbers of a CSV file (RFC 4180), or of one that ends with .gz, kept in memory. Inputs are float32 [n, columns];
/// targets int64 or float32, [n], or with several target columns [n, columns]. A DataError names line and column of
/// what is no number, and a row with another number of fields. Throws a UsageError for a column that is not there.
Dataset csv(const std::string& path, const CsvOptions& options = {});

enum class TokenType : uint8_t { kUInt8, kUInt16, kUInt32, kInt32, kInt64 };

struct TokenOptions {
  TokenType dtype = TokenType::kUInt16;
  int64_t context = 1024;   // tokens of a sample
  int64_t header = 0;       // bytes at the file's beginning that are no tokens
  int64_t vocabulary = 0;   // tokens are from 0 to below it; 0: not checked
  bool check_dtype = true;  // a file that looks like tokens of another dtype is refused
};

/// Windows of tokens from a file that holds nothing but them, in little-endian. Throws a UsageError for a vocabulary
/// that the dtype cannot hold. A DataError names the file, the byte and the value of a token that is not in the
/// vocabulary: of a file of up to 64 MiB at once, of a larger one at the latest when it is read. A file that looks like
/// tokens of another width or byte order is a DataError: one of 32-bit tokens has, read as 16 bits, a 0 at each second
/// place. Inputs are int64 [n, context], targets the same, one token further. Windows lie side by side, so that an
/// epoch predicts each token once; the tokens at the end that do not fill a window are left out. The file is read as
/// samples are asked for; one that is cut off meanwhile is a DataError. Any number of threads may read.
Dataset tokens(const std::string& path, const TokenOptions& options = {});

/// Images in folders, and what the folders are called.
struct ImageFolder {
  Dataset dataset = {};
  std::vector<std::string> classes = {};  // names of the folders, as ImageOptions::classes or sorted: class 0 is first
  std::vector<std::string> files = {};    // sample i's file
  int64_t passed_over = 0;                // files whose name does not end with .png, .jpg or .jpeg
};

/// PNG and JPEG files under a folder that has one folder for each class, and files in these at any depth. Inputs are
/// [n, 3, height, width], red, green and blue; targets int64 [n]. Samples are sorted by class, then by path. An image
/// is read, decoded and scaled when it is asked for; any number of threads may read. What lies beside data is neither a
/// class nor a sample: hidden folders and files, lock files, thumbnails and what file managers leave (".git",
/// "._1.jpg", "__MACOSX", "@eaDir", "lost+found"); a folder that `.classes` names is always a class. A DataError names
/// an image that cannot be decoded, as it does a class without images, a folder without classes, and with `.classes`
/// each folder that is not among them and each class without a folder. Which class has which number is part of the
/// digest.
ImageFolder image_folder(const std::string& folder, const ImageOptions& options = {});

}  // namespace lockstep::data
