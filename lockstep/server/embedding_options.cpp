#include "lockstep/server/embedding_options.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/server/option_checks.h"

namespace lockstep::internal::inline server {

void check(const EmbeddingOptions& options) {
  const std::string who = fmt::format("table '{}'", options.name);
  const auto require = [](bool valid, std::string fact, const char* remedy) {
    if (!valid) throw UsageError("LS-OPTION", std::move(fact), remedy);
  };
  require(!options.name.empty() && options.name.find('/') == std::string::npos,
          fmt::format("make_embedding was given .name = '{}'", options.name),
          "name the table, without a slash: checkpoints tell tables apart by names");
  check_at_least(0, who, ".rows", options.rows);
  check_at_least(1, who, ".dim", options.dim);
  check_at_least(0, who, ".admit_after", options.admit_after);
  check_at_least(0, who, ".evict_after", options.evict_after);
  check_at_least(0, who, ".limit_bytes", options.limit_bytes);
  const c10::ScalarType type = options.dtype;
  require(type == c10::kFloat || type == c10::kDouble || type == c10::kHalf || type == c10::kBFloat16,
          fmt::format("{} was given .dtype = {}", who, c10::toString(type)),
          "give float32, float64, bfloat16 or float16");
  const RowInitial& initial = options.initial;
  const bool is_function = initial.kind() == RowInitial::Kind::kFunction;
  require(!is_function || initial.function(), fmt::format("{} was given an empty function as .initial", who),
          "give a function that writes a row's weights");
  const bool is_ordered =
      initial.kind() == RowInitial::Kind::kNormal ? initial.second() >= 0 : initial.first() <= initial.second();
  require(is_function || (std::isfinite(initial.first()) && std::isfinite(initial.second()) && is_ordered),
          fmt::format("{} was given .initial of {} and {}", who, initial.first(), initial.second()),
          "give finite numbers: the lower before the higher one, or a deviation that is not negative");
}

std::string text_of(const RowInitial& initial) {
  switch (initial.kind()) {
    case RowInitial::Kind::kUniform: return fmt::format("uniform({}, {})", initial.first(), initial.second());
    case RowInitial::Kind::kNormal: return fmt::format("normal({}, {})", initial.first(), initial.second());
    case RowInitial::Kind::kFunction: break;
  }
  return "a function";
}

}  // namespace lockstep::internal::server
