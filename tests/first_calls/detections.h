// Notes when MKL finds out which processor this is: for programs that are linked with detections.cpp.
#pragma once

#include <string>

namespace lockstep::testing {

/// How often, on which thread for the first time, and beside how many others: "1 on the main thread alone". "none"
/// where it has not happened, and "no MKL" where LibTorch has another library.
std::string detections();

}  // namespace lockstep::testing
