#include "lockstep/checkpoint/tables/table_export.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <span>
#include <vector>

#include "lockstep/checkpoint/folder/replace_file.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline checkpoint {

void save_with_rows(const std::filesystem::path& file, const NamedTensors& tensors, const CheckpointReader& reader,
                    const std::map<std::string, std::size_t>& rows) {
  const at::NoGradGuard no_grad;
  NamedTensors all = tensors;
  std::vector<std::size_t> places;
  for (const auto& [name, place] : rows) {
    all.emplace_back(name, tensor_of_form(reader.memory_for_rows(place, 0).scalar_type(), reader.place(place).shape));
    places.push_back(place);
  }
  const FileLayout layout = layout_of(all, {{"format", "pt"}});
  const auto target = replace_file(file, [&](NewFile& unfinished) {
    unfinished.write(0, std::as_bytes(std::span(layout.head)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor value = plain_and_contiguous(tensors[i].second.detach());
      if (const auto bytes = bytes_in(value); !bytes.empty()) unfinished.write(layout.offsets[i], bytes);
    }
    std::vector<std::byte> piece;
    for (std::size_t k = 0; k < places.size(); ++k) {
      uint64_t offset = layout.offsets[tensors.size() + k];
      for (std::size_t p = 0; p < reader.manifest().tensors[places[k]].checksums.size(); ++p) {
        reader.read_piece(places[k], p, piece);
        if (!piece.empty()) unfinished.write(offset, piece);
        offset += piece.size();
      }
    }
    unfinished.sync();
  });
  host_files().sync_folder(target.parent_path());
}

}  // namespace lockstep::internal::checkpoint
