// A checkpoint in memory that says of each value which step it is of.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/checkpoint/image.h"
#include "lockstep/checkpoint/tables/saved_table_reader.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "tests/checkpoint/model_files.h"

namespace lockstep::testing {

inline constexpr Lost kLosses[] = {Lost::kAll,  Lost::kNothing,  Lost::kContents,
                                   Lost::kHalf, Lost::kNewNames, Lost::kAllButLastName};

/// A small state whose values say which step it is of.
inline internal::Image image_of(int64_t step) {
  internal::Image image;
  image.run = {.library = "test",
               .strategy = "S",
               .replicas = 2,
               .workers = 1,
               .step = step,
               .sequence = static_cast<uint64_t>(step)};
  image.run.numbers.push_back({.kind = "number", .name = "step", .integers = {step}});
  image.tensors.push_back({"mirrored", "w", -1, torch::full({3, 2}, static_cast<double>(step))});
  image.tensors.push_back({"mirrored", "b", -1, torch::full({5}, step, torch::kByte)});
  image.tensors.push_back({"slot", "w/momentum", -1, torch::full({3, 2}, static_cast<double>(step))});
  for (int64_t r = 0; r < 2; ++r) image.tensors.push_back({"on-read", "mean", r, torch::full({2}, step + r)});
  image.run.tables["rows"] = "{\"step\":" + std::to_string(step) + "}";
  const torch::Tensor rows = torch::full({4}, step, torch::kLong);
  image.rows.push_back({"rows/ids", torch::kLong, {4}, [rows](uint64_t begin, std::span<std::byte> to) {
                          std::ranges::copy(internal::host_bytes(rows).subspan(begin, to.size()), to.begin());
                        }});
  return image;
}

/// Loads it whole, and gives the step that all its values are of.
inline int64_t step_in(internal::Files& files, const fs::path& folder) {
  const internal::Image image = internal::load_image(files, folder);
  const int64_t step = image.run.step;
  const internal::Image expected = image_of(step);
  EXPECT_EQ(image.run, expected.run);
  EXPECT_EQ(image.tensors.size(), expected.tensors.size());
  for (const auto& one : image.tensors) {
    EXPECT_EQ(one.value.to(torch::kLong).flatten()[0].item<int64_t>(), step + std::max<int64_t>(one.replica, 0))
        << one.name;
  }
  const internal::CheckpointReader reader(files, folder);
  internal::SavedTableReader rows(reader, "rows");
  EXPECT_TRUE(torch::equal(rows.next_rows("ids", 4), torch::full({4}, step, torch::kLong)));
  return step;
}

}  // namespace lockstep::testing
