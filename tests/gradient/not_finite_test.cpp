#include "lockstep/gradient/not_finite.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::internal {
namespace {

TEST(NotFinite, IsReadAsItWasWritten) {
  const std::vector<NotFinite> found{{3, {0, 7}, false}, {9, {}, true}, {UINT64_MAX, {1}, true}};
  EXPECT_EQ(decode_not_finite(encode(found)), found);
  EXPECT_TRUE(decode_not_finite(encode(std::vector<NotFinite>())).empty());
}

TEST(NotFinite, OfBytesThatWereCutIsWhatCanBeRead) {
  const std::string bytes = encode({{3, {0, 7}, false}, {9, {}, true}});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_LE(decode_not_finite(std::string_view(bytes).substr(0, size)).size(), 2u);
  }
  std::string endless = encode({{1, {}, false}});
  endless.back() = '\x7f';  // says that it has 2^62 replicas
  EXPECT_EQ(decode_not_finite(endless), (std::vector<NotFinite>{{1, {}, false}}));
}

TEST(NotFinite, NamesReplicasOfAllWorkersAndTheSumOnlyWhereNoReplicaIsToBlame) {
  const std::vector<std::vector<NotFinite>> by_worker{
      {{5, {}, true}, {8, {1}, false}},
      {{2, {}, true}, {5, {3, 2}, false}},
      {},
      {{8, {6}, false}},
  };
  const std::vector<NotFinite> all{{2, {}, true}, {5, {2, 3}, false}, {8, {1, 6}, false}};
  EXPECT_EQ(join(by_worker), all);
}

}  // namespace
}  // namespace lockstep::internal
