// Where two texts of several lines differ.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace lockstep::internal::inline comm {

/// The first line in which two texts differ, from each; the last lines of equal texts.
std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b);

}  // namespace lockstep::internal::comm
