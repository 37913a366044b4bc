// Any bytes as what a worker proposes before all go on.
#include <array>
#include <string_view>

#include "lockstep/comm/agreement.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using fuzz::check;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const internal::Proposal proposal = internal::decode(bytes, 1);
    check(internal::decode(internal::encode(proposal), 1).data == proposal.data, "what is read stays as it is");
    if (proposal.detail.size() <= internal::kLongestDetail) {
      check(internal::encode(proposal) == bytes, "a proposal is what encode() makes");
    }
    // Worker 0 meets in step 3; worker 1 says what it says.
    const std::array<internal::Proposal, 2> all{
        internal::Proposal{.call = "all_reduce", .signature = 7, .step = 3, .detail = "all_reduce"}, proposal};
    const internal::Agreement agreement = internal::agreement_of(all);
    const bool go_on = agreement.outcome == internal::Agreement::Outcome::kGoOn;
    check(!go_on || (proposal.call == "all_reduce" && proposal.signature == 7 && proposal.step == 3),
          "workers go on where they do the same");
    try {
      internal::require_agreement(all, 0);
      check(go_on, "an agreement lets workers go on, or throws");
    } catch (const Error&) {
      check(!go_on, "an agreement lets workers go on, or throws");
    }
  } catch (const PeerError& error) {
    fuzz::check_message(error);
  }
  return 0;
}
