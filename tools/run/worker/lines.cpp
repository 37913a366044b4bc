#include "tools/run/worker/lines.h"

#include <algorithm>

namespace lockstep::tools {

void LineCutter::add(std::string_view bytes, const Receive& receive) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t wanted = newline == std::string_view::npos ? bytes.size() : newline + 1;
    const std::size_t taken = std::min(wanted, kLongest - begun_.size());
    const std::string_view part = bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    const bool whole = part.back() == '\n';
    if (whole && begun_.empty()) {
      receive(part);  // the usual case needs no copy
      continue;
    }
    begun_.append(part);
    if (!whole && begun_.size() < kLongest) return;  // bytes are used up
    receive(begun_);
    begun_.clear();
  }
}

void LineCutter::finish(const Receive& receive) {
  if (!begun_.empty()) receive(begun_);
  begun_.clear();
}

void LastLines::add(std::string_view piece) {
  const bool ends = !piece.empty() && piece.back() == '\n';
  if (ends) piece.remove_suffix(1);
  if (inside_ && !piece.empty() && !lines_.empty()) lines_.pop_back();
  if (!inside_ || !piece.empty()) lines_.emplace_back(piece.substr(0, kLongest));
  if (lines_.size() > kLines) lines_.pop_front();
  inside_ = !ends;
}

}  // namespace lockstep::tools
