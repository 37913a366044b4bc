// A text that came from outside, together with its name, and errors that say which place of it is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::internal::inline cluster {

/// A text and where it stands: "SLURM_STEP_NODELIST", or "cluster.worker[1] of TF_CONFIG".
struct NamedText {
  std::string name;
  std::string text;
};

/// `text` in quotes, on one line of printable ASCII; what is longer than `longest` bytes is cut.
std::string in_quotes(std::string_view text, std::size_t longest = 80);

/// Throws the ClusterError LS-CLUSTER-VALUE: it names the text, its value, the offset in bytes, what stands there and
/// what was expected instead.
[[noreturn]] void throw_malformed(const NamedText& value, std::size_t offset, const std::string& expected);

/// The decimal number that the whole text is, from `least` to `most`, both at least 0; otherwise throw_malformed().
int64_t whole_number(const NamedText& value, int64_t least, int64_t most);

}  // namespace lockstep::internal::cluster
