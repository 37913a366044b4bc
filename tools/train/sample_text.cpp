#include "tools/train/sample_text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace lockstep::tools {

std::string sample_text(Strategy& strategy, const ReplicatedModel& model, const std::string& vocabulary,
                        int64_t context, int64_t count) {
  // It begins as after a line's end, which is not part of what it gives.
  const std::size_t newline = vocabulary.find('\n');
  const int64_t first = newline == std::string::npos ? 0 : static_cast<int64_t>(newline);
  const auto texts = strategy.evaluate([&](ReplicaContext& ctx) {
    std::string text;
    if (ctx.replica_id() != 0) return text;
    std::vector<int64_t> seen{first};
    while (static_cast<int64_t>(text.size()) < count) {
      const auto length = std::min(static_cast<int64_t>(seen.size()), context);
      const at::Tensor window = at::from_blob(seen.data() + seen.size() - length, {1, length}, at::kLong);
      const at::Tensor expected = model(ctx)->forward(window)[-1].softmax(0);
      seen.push_back(at::multinomial(expected, 1, /*replacement=*/false, ctx.random()).item<int64_t>());
      text += vocabulary[static_cast<std::size_t>(seen.back())];
    }
    return text;
  });
  return *texts.begin();
}

}  // namespace lockstep::tools
