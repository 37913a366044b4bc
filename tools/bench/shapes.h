// Lists of tensor shapes, as flags write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::tools {

using Shape = std::vector<int64_t>;

/// "4096x4096*4,1000": four of 4096 x 4096 and one of 1000. A UsageError that names `flag` and quotes what is none.
std::vector<Shape> parse_shapes(const std::string& flag, const std::string& text);

/// "10000x256": 10,000 of 256.
std::vector<Shape> parse_tensors(const std::string& flag, const std::string& text);

/// Elements of them all.
double count_elements(const std::vector<Shape>& shapes);

}  // namespace lockstep::tools
