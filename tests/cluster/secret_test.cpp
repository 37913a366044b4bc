#include "lockstep/cluster/secret.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <concepts>
#include <filesystem>
#include <fstream>
#include <ostream>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using Variables = Environment::Variables;
using testing::expect_error;

const std::string kSecret = "correct horse battery staple";

template <class T>
concept Printed = requires(std::ostream& out, const T& value) {
  out << value;
};
static_assert(!Printed<Secret>, "a secret has no operator<<");
static_assert(!std::convertible_to<Secret, std::string>, "a secret does not become a text by itself");
static_assert(!fmt::is_formattable<Secret>::value, "a secret cannot be formatted");

/// A file of a secret, in a folder of its own.
class SecretFile : public ::testing::Test {
 protected:
  SecretFile() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-secret-XXXXXX").string();  // for mkdtemp
    folder_ = mkdtemp(name.data());
    path_ = folder_ / "secret";
  }
  ~SecretFile() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  Environment environment() const { return Environment(Variables{{"LOCKSTEP_SECRET_FILE", path_.string()}}); }
  void expect_refused(std::string_view value) {
    expect_error<ClusterError>([&] { resolve_cluster({}, environment()); }, "LS-CLUSTER-SECRET",
                               {path_.string(), value});
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST(Secret, ComesFromTheOptionsOrTheEnvironment) {
  const Environment environment({{"LOCKSTEP_SECRET", kSecret}});
  EXPECT_EQ(resolve_cluster({}, environment).secret.reveal(), kSecret);
  EXPECT_EQ(resolve_cluster({.secret = Secret("another secret of 25 bytes")}, environment).secret.reveal(),
            "another secret of 25 bytes");
  EXPECT_TRUE(resolve_cluster({}, Environment()).secret.is_empty());
}

TEST(Secret, OfAWrongLengthIsRefusedWithoutBeingShown) {
  for (const std::string& text : {std::string("too-short-hush"), std::string(4097, 'q')}) {
    const auto error = testing::error_from<ClusterError>([&] {
      resolve_cluster({}, Environment(Variables{{"LOCKSTEP_SECRET", text}}));
    });
    EXPECT_EQ(error.code(), "LS-CLUSTER-SECRET");
    EXPECT_EQ(std::string(error.what()).find(text), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(std::to_string(text.size())), std::string::npos) << error.what();
  }
}

TEST(Secret, BothVariablesAreAContradiction) {
  expect_error<ClusterError>(
      [] {
        resolve_cluster({}, Environment(Variables{{"LOCKSTEP_SECRET", kSecret}, {"LOCKSTEP_SECRET_FILE", "/x"}}));
      },
      "LS-CLUSTER-SECRET", {"LOCKSTEP_SECRET", "LOCKSTEP_SECRET_FILE"});
}

TEST_F(SecretFile, LosesTheNewlineAtItsEnd) {
  for (const char* end : {"", "\n", "\r\n"}) {
    write(kSecret + end, 0400);
    EXPECT_EQ(resolve_cluster({}, environment()).secret.reveal(), kSecret);
  }
}

TEST_F(SecretFile, ThatOthersCanUseIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    write(kSecret, mode);
    expect_refused(fmt::format("{:04o}", mode));
  }
}

TEST_F(SecretFile, ThatIsMissingOrNoFileOrHasAWrongSizeIsRefused) {
  expect_refused("cannot be opened");
  write("hush");
  expect_refused("4 bytes");
  write(std::string(4099, 'q'));
  expect_refused("more than 4096 bytes");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  expect_refused("not a regular file");
}

TEST_F(SecretFile, ThatIsAPipeIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  expect_refused("not a regular file");
}

}  // namespace
}  // namespace lockstep
