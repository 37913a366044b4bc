#include "lockstep/core/findings.h"

#include "lockstep/core/log.h"
#include "lockstep/core/process/told_findings.h"

namespace lockstep::internal::inline core {

void Findings::add(ErrorCode code, const std::string& subject, int64_t step, FunctionRef<std::string()> text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.subject != subject || entry.finding.code != code.text()) continue;
    ++entry.finding.count;
    return;
  }
  entries_.push_back({subject, {code.text(), text(), step, 1}});
  tell_finding(code.text(), entries_.back().finding.text, step);
  log(LogLevel::kWarning, entries_.back().finding.text + " [" + code.text() + "]");
}

std::vector<Finding> Findings::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Finding> all;
  for (const Entry& entry : entries_) all.push_back(entry.finding);
  return all;
}

}  // namespace lockstep::internal::core
