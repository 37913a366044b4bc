// Batches as rows: joined, cut and compared. All tensors of a batch have one row for each sample.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/data/batch.h"
#include "lockstep/data/dataset.h"

namespace lockstep::internal::inline data {

/// What messages call the samples of batches that are joined.
struct SampleNames {
  std::function<std::string(int64_t id)> name_of = {};  // without it "sample 7"
  std::span<const int64_t> ids = {};                    // of each batch the first one; without them those in Batch::ids
};

/// What to do about samples of different shapes.
inline constexpr const char* kHowToJoin =
    "give all samples one dtype and shape, in map(), fill them up with padded_batch(), or join them by a function: "
    "DistributeOptions::collate";

/// The rows of several batches, one after the other. Throws a DataError that names `who`, and two samples, where their
/// tensors differ in names, dtypes or shapes beyond the first dimension. At least one batch.
Batch joined_rows(std::span<const Batch> batches, const std::string& who, const SampleNames& names = {});

/// Joins those batches that agree in dtypes and shapes: of several such groups the one with the most rows, and of
/// groups of one size the first. `leave_out` is called with a DataError for each row of the others. At least one batch.
/// Samples are named by Batch::ids.
Batch joined_most(std::vector<Batch> batches, const std::string& who,
                  const std::function<std::string(int64_t id)>& name_of,
                  FunctionRef<void(const std::exception_ptr&)> leave_out);

/// Whether a tensor is an ordinary one of the host that needs no gradient, so that its memory is all that it is.
bool is_plain(const at::Tensor& tensor);

/// The rows [begin, begin + count) as views.
Batch rows_of(const Batch& batch, int64_t begin, int64_t count);

/// The rows with these indices, copied.
Batch rows_at(const Batch& batch, std::span<const int64_t> rows);

/// A part without rows, with the dtypes and shapes of `like`.
Batch no_rows(const Batch& like);

/// Adds `count` rows of padding: copies of row 0 with ids of -1, and with int64 targets of -100.
void pad_rows(Batch& batch, int64_t count, const Batch& like);

/// The rows of several batches, which may differ in the size of their second dimension: all are filled up to the
/// largest, or to `pad.length`. Throws a DataError as joined_rows() does where that does not make them alike.
Batch padded_rows(std::span<const Batch> batches, const lockstep::data::PadOptions& pad, const std::string& who,
                  const SampleNames& names = {});

/// `first` with the tensors of `second` in `more`, under "<name>/input" and so on.
Batch zipped(Batch first, const Batch& second, const std::string& name);

/// Throws a DataError that names `who` unless all defined tensors have `rows` rows, and input is defined.
void check_rows(const Batch& batch, int64_t rows, const std::string& who);

/// A digest of all tensors but the ids: names, dtypes, shapes and bits.
uint64_t digest_of(const Batch& batch);
/// A digest of a tensor: dtype, shape and bits.
uint64_t digest_of(const at::Tensor& tensor);
/// A digest of two. Cursors and caches that were saved have its values, so it is not core/digest.h.
uint64_t mixed(uint64_t a, uint64_t b);

at::Tensor ids_tensor(std::span<const int64_t> ids);

}  // namespace lockstep::internal::data
