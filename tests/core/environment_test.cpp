// Malformed environment variables are refused, with what they accept.
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/loops/simd.h"
#include "lockstep/core/process/thread_limits.h"
#include "tests/support/errors.h"
#include "tests/support/fake_root.h"

namespace lockstep::internal {
namespace {

template <class Fn>
void expect_refused(const Fn& fn, std::string_view variable, const std::string& value,
                    const lockstep::testing::Where& where = lockstep::testing::Where::current()) {
  const std::string quoted = "'" + value + "'";
  lockstep::testing::expect_error<UsageError>(fn, "LS-ENVIRONMENT", {variable, quoted}, where);
}

TEST(Environment, SimdTakesItsFiveNamesOnly) {
  EXPECT_EQ(simd_setting(""), Simd::kAvx512);
  EXPECT_EQ(simd_setting("plain"), Simd::kPlain);
  EXPECT_EQ(simd_setting("neon"), Simd::kNeon);
  EXPECT_EQ(simd_setting("avx2"), Simd::kAvx2);
  EXPECT_EQ(simd_setting("avx2-vaes"), Simd::kAvx2Vaes);
  EXPECT_EQ(simd_setting("avx512"), Simd::kAvx512);
  for (const char* wrong : {"AVX2", "avx", "scalar", "avx2 "})
    expect_refused([&] { simd_setting(wrong); }, "LOCKSTEP_SIMD", wrong);
}

TEST(Environment, LogTakesItsFourLevelsOnly) {
  EXPECT_EQ(log_setting(""), static_cast<int>(LogLevel::kInfo));
  EXPECT_EQ(log_setting("off"), -1);
  EXPECT_EQ(log_setting("error"), static_cast<int>(LogLevel::kError));
  EXPECT_EQ(log_setting("warning"), static_cast<int>(LogLevel::kWarning));
  EXPECT_EQ(log_setting("info"), static_cast<int>(LogLevel::kInfo));
  for (const char* wrong : {"warn", "OFF", "0", "debug"})
    expect_refused([&] { log_setting(wrong); }, "LOCKSTEP_LOG", wrong);
}

TEST(ThreadLimits, AreNamedWithTheirValues) {
  const lockstep::testing::FakeRoot root;
  root.write("/proc/self/cgroup", "0::/jobs/one");
  root.write("/sys/fs/cgroup/jobs/one/pids.max", "max");
  root.write("/sys/fs/cgroup/jobs/pids.max", "77");
  root.write("/proc/sys/kernel/threads-max", "12345");
  const std::string text = thread_limits_text(root.path());
  EXPECT_NE(text.find("pids.max of the control group is 77"), std::string::npos) << text;
  EXPECT_NE(text.find("threads-max is 12345"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::internal
