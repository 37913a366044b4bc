// Stands for LibTorch's tensor in fuzz targets of code that passes tensors on and does nothing with them.
#pragma once

namespace at {
class Tensor {};
}  // namespace at
