#include "tools/bench/dump.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw DataError("LS-FILE", "'" + folder + "' cannot be made: " + error.message(), "choose a folder that is yours");
}

void dump_tensors(const std::string& folder, const std::string& stem, const NamedTensors& tensors) {
  WholeFile bytes(folder + "/" + stem + ".bin");
  WholeFile list(folder + "/" + stem + ".json");
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor flat = tensor.detach().contiguous();
    const auto size = static_cast<std::size_t>(flat.nbytes());
    bytes.write(std::string(static_cast<const char*>(flat.data_ptr()), size));
    json.push_back({{"name", name},
                    {"dtype", c10::toString(flat.scalar_type())},
                    {"shape", flat.sizes().vec()},
                    {"offset", offset}});
    offset += size;
  }
  list.write(json.dump(1) + "\n");
  bytes.commit();
  list.commit();
}

}  // namespace lockstep::tools
