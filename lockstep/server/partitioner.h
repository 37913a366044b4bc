// How a variable is cut into shards, and how shards are dealt to parameter servers.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace lockstep {

/// Into how many shards a variable of this shape and dtype is cut along its first axis. A function of its arguments
/// alone, because every task of a job calls it. It is not called for a variable without dimensions, which is never cut.
/// More shards than the axis has elements become as many as it has; fewer than 1 are a UsageError (LS-OPTION). The
/// sizes of a variable's shards differ by at most 1, and the first ones are the larger.
using Partitioner = std::function<int64_t(c10::IntArrayRef shape, c10::ScalarType dtype)>;

// The three partitioners have the rules of tf.distribute.experimental.partitioners. Each throws a UsageError
// (LS-OPTION) for a number below 1.

/// `shards` for every variable.
Partitioner fixed_shards_partitioner(int64_t shards);

/// As many shards as there are parts of `bytes` in the variable, a part that is begun included, and at most
/// `max_shards`. TensorFlow's max_shards is 1 where it is left out, which cuts nothing; here there is no limit then.
Partitioner min_size_partitioner(int64_t bytes = 256 << 10, std::optional<int64_t> max_shards = std::nullopt);

/// As few shards as possible of at most `bytes` each, or of one row where a row is larger; with `max_shards` at most so
/// many, which may be larger then.
Partitioner max_size_partitioner(int64_t bytes, std::optional<int64_t> max_shards = std::nullopt);

/// Which server gets the next shard.
enum class ServerPlacement : uint8_t {
  kInTurn,   // the one after that of the shard before it
  kByBytes,  // the one that has the fewest bytes; of several, the first
};

}  // namespace lockstep
