// The callback that writes a report of a fit as a page of HTML.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/train/callback.h"

namespace lockstep::callbacks {

struct HtmlReportOptions {
  std::filesystem::path file = {};
  std::string title = {};  // by default the file's name
  /// A folder of checkpoints of this fit, as checkpoints() makes them, which the report lists.
  std::filesystem::path checkpoints = {};
  double every_seconds = 10;  // how often the file is written anew while the fit runs, at ends of epochs
  /// Norms of each variable's gradient, of each so many-th epoch's first step (see Trainer::gradients()); 0: none.
  int64_t gradients_every = 1;
};

/// Writes a report of the fit: how it ended and why, its best numbers, findings, curves, speed, learning rate and
/// gradients, checkpoints, what ran, and all epochs as a table. The page is one file that loads nothing, shows in light
/// and dark and on paper, and draws without script. It carries the run's numbers as JSON, in the element
/// "lockstep-run".
///
/// The chief writes it at ends of epochs, at the fit's end, and where the fit fails; each time whole, and then in the
/// place of the last one. A resumed fit continues it. A UsageError (LS-OPTION) without a file; a DataError (LS-FILE)
/// where it cannot be written.
std::shared_ptr<Callback> html_report(HtmlReportOptions options);

}  // namespace lockstep::callbacks
