// The lines of progress(), as text.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/history.h"

namespace lockstep::internal::inline train {

/// What a line of progress says.
struct ProgressFigures {
  int64_t epoch = 0;         // from 0
  int64_t epochs = -1;       // -1: not known
  int64_t step = 0;          // that are done
  int64_t steps = -1;        // -1: not known
  double seconds = 0;        // since the fit began
  double seconds_left = -1;  // -1: not known
  double samples_per_second = 0;
  Logs logs = {};  // of the last step that had some
};

/// "0:19", "12:31", "2:03:05".
std::string time_text(double seconds);
/// "980", "9,780" or, short, "9.8k".
std::string count_text(double count, bool is_short);
/// "loss 0.3120  accuracy 0.8790": the loss first, and val_loss before the other numbers of validation.
std::string logs_text(const Logs& logs);

/// One line for a terminal of `width` columns, of which the last one stays free. Where it is too narrow, the bar goes,
/// then numbers from the right.
std::string bar_line(const ProgressFigures& figures, int64_t width);
/// One line for a file.
std::string step_line(const ProgressFigures& figures);

}  // namespace lockstep::internal::train
