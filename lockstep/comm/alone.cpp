#include "lockstep/comm/alone.h"

#include <fmt/format.h>

#include <mutex>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::internal::inline comm {

namespace {

/// What describes other workers; empty where nothing does.
std::string others() try {
  const ClusterSpec cluster = resolve_cluster();
  if (cluster.num_workers() == 1) return {};
  return fmt::format("{} describes {} workers", cluster.source, cluster.num_workers());
} catch (const ClusterError& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void warn_where_alone_among_workers(const std::string& strategy) {
  static std::once_flag once;
  std::call_once(once, [&] {
    const std::string found = others();
    if (found.empty()) return;
    log(LogLevel::kWarning,
        fmt::format(
            "{}, and {} in this process trains alone: take MultiWorkerMirroredStrategy; where each process is to train "
            "by itself, unset the variables that lockstep cluster shows",
            found, strategy));
  });
}

}  // namespace lockstep::internal::comm
