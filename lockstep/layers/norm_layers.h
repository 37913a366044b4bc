// What is known of layers of normalisation in a module, and of those that convert_batch_norm has replaced.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::internal::inline layers {

/// Layers that a factory's call of convert_batch_norm has replaced, and that something else may hold: a temporary of
/// the factory, which goes, or a member that forward uses. One at a time lives on a thread.
class ReplacedLayers {
 public:
  ReplacedLayers();
  ~ReplacedLayers();
  ReplacedLayers(const ReplacedLayers&) = delete;
  ReplacedLayers& operator=(const ReplacedLayers&) = delete;

  /// Throws the UsageError of the first one that is still there. Call it when the factory has returned.
  void require_gone() const;

  /// The one of this thread, or null.
  static ReplacedLayers* current();
  void add(std::weak_ptr<torch::nn::Module> layer, std::string path, std::string parent);

 private:
  struct Replaced {
    std::weak_ptr<torch::nn::Module> layer;
    std::string path;
    std::string parent;
  };
  std::vector<Replaced> replaced_;
};

/// Whether a module is batch normalisation of torch::nn, or of a class derived from it.
bool is_batch_norm(const torch::nn::Module& module);
/// The same, or SyncBatchNorm, or instance normalisation: its buffers are averages of what it has seen.
bool has_running_statistics(const torch::nn::Module& module);
/// "torch::nn::BatchNorm2d", without the Impl that a holder hides.
std::string type_of_module(const torch::nn::Module& module);

}  // namespace lockstep::internal::layers
