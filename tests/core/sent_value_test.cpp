// Values of a program as bytes: they come back, and bytes that are none are refused.
#include "lockstep/core/sent_value.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;

TEST(SentValue, ComesBack) {
  using Value = std::tuple<bool, std::optional<std::string>, std::map<std::string, std::vector<int64_t>>, double>;
  const Value value{true, "text", {{"a", {1, 2}}, {"b", {}}}, 0.5};
  SentValue sent;
  Sending<Value>::put(sent, value);
  EXPECT_EQ(Sending<Value>::get(sent), value);
}

TEST(SentValue, IsRefusedWhereAByteIsNoBool) {
  for (const char byte : {'\x02', '\x11', '\xff'}) {
    SentValue sent;
    sent.bytes = std::string(1, byte);
    expect_error<PeerError>([&] { Sending<bool>::get(sent); }, "LS-PEER-MESSAGE");
    SentValue optional;
    optional.bytes = byte + std::string("value");
    expect_error<PeerError>([&] { Sending<std::optional<char>>::get(optional); }, "LS-PEER-MESSAGE");
  }
}

TEST(SentValue, IsRefusedWhereBytesAreMissing) {
  SentValue sent;
  Sending<std::string>::put(sent, "a text");
  sent.bytes.pop_back();
  expect_error<PeerError>([&] { Sending<std::string>::get(sent); }, "LS-PEER-MESSAGE");
}

}  // namespace
}  // namespace lockstep::internal
