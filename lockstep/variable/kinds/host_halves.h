// A variable's memory that all workers of a host map: two halves, of which one has the value, and the next step of an
// optimizer writes the other.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::internal::inline variable {

/// Tensors whose memory is a half share its ownership, so that the memory stays as long as any of them.
class HostHalves final : public c10::intrusive_ptr_target {
 public:
  struct Half {
    std::byte* values = nullptr;
    uint64_t* checksums = nullptr;  // of each block; null where foreign writes are not looked for
  };

  /// Both halves lie in `memory`, which other variables may have a part of. `replicas` are those of the host's workers.
  HostHalves(std::shared_ptr<std::byte> memory, std::array<Half, 2> halves, std::vector<int64_t> replicas)
      : memory_(std::move(memory)), halves_(halves), replicas_(std::move(replicas)) {}

  const Half& operator[](int half) const { return halves_[static_cast<std::size_t>(half)]; }
  /// Whose value it is.
  const std::vector<int64_t>& replicas() const { return replicas_; }

 private:
  const std::shared_ptr<std::byte> memory_;
  const std::array<Half, 2> halves_;
  const std::vector<int64_t> replicas_;
};

}  // namespace lockstep::internal::variable
