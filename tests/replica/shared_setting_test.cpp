#include "lockstep/replica/pool/shared_setting.h"

#include <gtest/gtest.h>

namespace lockstep::internal {
namespace {

int number = 0;
int get() { return number; }
void set(int value) { number = value; }

TEST(SharedSetting, ComesBackAfterTheLastOfRequestsThatOverlap) {
  number = 8;
  SharedSetting setting(get, set);
  setting.begin(1);
  setting.begin(1);
  EXPECT_EQ(number, 1);
  setting.end(1);
  EXPECT_EQ(number, 1) << "the second one is still under way";
  setting.end(1);
  EXPECT_EQ(number, 8);
}

TEST(SharedSetting, IsThatOfTheLastRequestThatBeganAndHasNotEnded) {
  number = 8;
  SharedSetting setting(get, set);
  setting.begin(1);
  setting.begin(4);
  EXPECT_EQ(number, 4);
  setting.end(1);
  EXPECT_EQ(number, 4);
  setting.begin(2);
  setting.end(2);
  EXPECT_EQ(number, 4);
  setting.end(4);
  EXPECT_EQ(number, 8);
}

}  // namespace
}  // namespace lockstep::internal
