// The secret that the workers of a job share.
#pragma once

#include <string>

namespace lockstep {

/// A text that only the workers of one job know: whoever knows it may join. Nothing prints it: it has no operator<<, no
/// formatter, and stands in no message.
class Secret {
 public:
  /// No secret.
  Secret() = default;
  /// 16 to 4096 bytes; anything else is a ClusterError (LS-CLUSTER-SECRET).
  explicit Secret(std::string bytes);

  bool is_empty() const { return bytes_.empty(); }
  /// The bytes themselves, for deriving keys.
  const std::string& reveal() const { return bytes_; }

 private:
  std::string bytes_;
};

namespace internal::inline cluster {

/// The secret in a file, without the newline at its end. It must be a regular file that belongs to this user or to root
/// and that nobody else can read or write; otherwise a ClusterError (LS-CLUSTER-SECRET).
Secret secret_from_file(const std::string& path);

}  // namespace internal::cluster
}  // namespace lockstep
