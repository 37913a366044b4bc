// A tf.train.Example's lists as tensors.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/data/sources/record_files.h"

namespace lockstep::data {

namespace {

template <class T>
at::Tensor as_tensor(const T* values, std::size_t count, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(count)}, dtype);
  std::copy_n(values, count, static_cast<T*>(tensor.data_ptr()));
  return tensor;
}

}  // namespace

at::Tensor tensor_of(const TfFeature& feature) {
  switch (feature.kind) {
    case TfFeature::Kind::kFloats: return as_tensor(feature.floats.data(), feature.floats.size(), at::kFloat);
    case TfFeature::Kind::kInts: return as_tensor(feature.ints.data(), feature.ints.size(), at::kLong);
    case TfFeature::Kind::kBytes:
      if (feature.bytes.size() == 1) return as_tensor(feature.bytes[0].data(), feature.bytes[0].size(), at::kByte);
      break;
    case TfFeature::Kind::kNone: break;
  }
  throw DataError("LS-DATA-RECORD",
                  fmt::format("a feature with {} was to be a tensor",
                              feature.kind == TfFeature::Kind::kNone ? std::string("no list")
                                                                     : fmt::format("{} texts", feature.bytes.size())),
                  "take its .bytes one by one, or check what the file holds");
}

}  // namespace lockstep::data
