// `lockstep train`: trains a built-in model on real data under any strategy.
#pragma once

#include "tools/train/train_options.h"

namespace lockstep::tools {

/// Trains, evaluates and reports; gives the exit code: 0 done, 1 done with findings, or ended by a loss or gradient
/// that is not finite, 75 ended after a whole step because SIGTERM asked a worker to stop. Where the last checkpoint or
/// another file cannot be written at the end, standard error says so, everything else still happens, and the code is 3.
/// As a worker of `lockstep run` it gives 65 in place of 1 and 3. Throws the library's errors for everything else. With
/// --checkpoint-dir a run that ends early, or is killed, goes on with --resume. Files appear under their names when
/// they are whole.
int train(const TrainOptions& options);

}  // namespace lockstep::tools
