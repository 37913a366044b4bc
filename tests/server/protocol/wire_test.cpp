// Messages as bytes, and back.
#include "lockstep/server/protocol/wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {
namespace {

/// Payloads are texts; each text and kind is one object, so that messages are equal where their texts are.
class TextCodec final : public PayloadCodec {
 public:
  Payload text(PayloadKind kind, const std::string& text) {
    auto& one = all_[{kind, text}];
    if (!one) one = std::make_shared<std::string>(text);
    return one;
  }
  void put(PayloadKind /*kind*/, const Payload& payload, std::string& bytes) override {
    bytes += *static_cast<const std::string*>(payload.get());
  }
  Payload get(PayloadKind kind, std::string_view bytes) override { return text(kind, std::string(bytes)); }

 private:
  std::map<std::pair<PayloadKind, std::string>, std::shared_ptr<std::string>> all_;
};

constexpr auto kMost = std::numeric_limits<uint64_t>::max();
constexpr WorkerId kWorker = {.worker = 3, .incarnation = 7};
constexpr StepAttempt kStep = {.step = int64_t{1} << 40, .attempt = 2};

class WireTest : public ::testing::Test {
 protected:
  std::vector<ChiefMessage> to_chief() {
    return {StepReport{.epoch = kMost,
                       .from = kWorker,
                       .number = 9,
                       .step = kStep,
                       .outcome = StepOutcome::kFailed,
                       .pushed = true,
                       .apply = false,
                       .coefficient = 0.25,
                       .payload = codec.text(PayloadKind::kError, "error"),
                       .pulled = {{.pull = 1, .server = 2, .position = 3}, {.pull = 4, .server = 5, .position = 6}},
                       .data = 7,
                       .push = 8},
            StepReport{.payload = codec.text(PayloadKind::kResult, "")},
            ServerRead{.epoch = 1, .server = 2, .position = 3},
            RoundSquares{.epoch = 1, .server = 2, .round = 3, .squares = codec.text(PayloadKind::kSquares, "4")},
            CutSaved{.epoch = 1, .server = 2, .cut = 3, .saved = codec.text(PayloadKind::kSaved, "files")}};
  }
  std::vector<ServerMessage> to_server() {
    return {PullRequest{.epoch = 1,
                        .from = kWorker,
                        .step = kStep,
                        .number = 4,
                        .position = 5,
                        .after = -1,
                        .request = codec.text(PayloadKind::kRequest, "rows")},
            PullRequest{},
            PushRequest{.epoch = 1, .from = kWorker, .step = kStep, .push = codec.text(PayloadKind::kPush, "sums")},
            LogEntries{.epoch = 1,
                       .first = kMost,
                       .entries = {{.kind = LogEntry::Kind::kCommit,
                                    .apply = false,
                                    .attempt = 3,
                                    .number = 4,
                                    .coefficient = -0.5,
                                    .payload = codec.text(PayloadKind::kRates, "rates")},
                                   {.kind = LogEntry::Kind::kChange, .payload = codec.text(PayloadKind::kChange, "x")},
                                   {.kind = LogEntry::Kind::kRelease}},
                       .floor = 6}};
  }
  std::vector<WorkerMessage> to_worker() {
    return {GiveStep{.epoch = 1,
                     .to = kWorker,
                     .number = 2,
                     .reports_noted = 3,
                     .step = kStep,
                     .kind = 4,
                     .position = 5,
                     .follows_own = false,
                     .arguments = codec.text(PayloadKind::kArguments, std::string("\0a", 2))},
            WithdrawStep{.epoch = 1, .to = kWorker, .step = kStep},
            ReportsNoted{.epoch = 1, .to = kWorker, .reports = 2},
            WorkerReplaced{.epoch = 1, .to = kWorker},
            PulledValues{.epoch = 1,
                         .to = kWorker,
                         .server = 2,
                         .step = kStep,
                         .number = 3,
                         .position = 4,
                         .values = codec.text(PayloadKind::kValues, "values")},
            PushAnswer{.epoch = 1,
                       .to = kWorker,
                       .server = 2,
                       .step = kStep,
                       .verdict = PushVerdict::kRefused,
                       .error = codec.text(PayloadKind::kError, "full")}};
  }

  ChiefMessage read(const ChiefMessage*, std::string_view bytes) { return chief_message(bytes, 3, codec); }
  ServerMessage read(const ServerMessage*, std::string_view bytes) { return server_message(bytes, 3, codec); }
  WorkerMessage read(const WorkerMessage*, std::string_view bytes) { return worker_message(bytes, codec); }

  template <class Message>
  void comes_back(const std::vector<Message>& messages) {
    std::vector<bool> kinds(std::variant_size_v<Message>);
    for (const Message& message : messages) {
      kinds[message.index()] = true;
      EXPECT_TRUE(read(&message, to_bytes(message, codec)) == message) << "kind " << message.index();
    }
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), true), static_cast<std::ptrdiff_t>(kinds.size()));
  }
  template <class Message>
  void is_refused_in_part(const std::vector<Message>& messages) {
    for (const Message& message : messages) {
      const std::string bytes = to_bytes(message, codec);
      for (std::size_t size = 0; size < bytes.size(); ++size) {
        EXPECT_THROW(read(&message, std::string_view(bytes).substr(0, size)), PeerError) << size;
      }
      EXPECT_THROW(read(&message, bytes + "x"), PeerError);
      std::string unknown = bytes;
      unknown[0] = static_cast<char>(std::variant_size_v<Message>);
      EXPECT_THROW(read(&message, unknown), PeerError);
    }
  }

  TextCodec codec;
};

TEST_F(WireTest, EveryMessageComesBackAsItWas) {
  comes_back(to_chief());
  comes_back(to_server());
  comes_back(to_worker());
}

TEST_F(WireTest, BytesThatAreNoMessageAreRefused) {
  is_refused_in_part(to_chief());
  is_refused_in_part(to_server());
  is_refused_in_part(to_worker());
}

TEST_F(WireTest, ChoicesAndFlagsThatThereAreNotAreRefused) {
  // One entry, whose kind is behind the message's kind, epoch, position and count, and whose flag is behind that.
  const std::string bytes = to_bytes(ServerMessage(LogEntries{.entries = {LogEntry{}}}), codec);
  for (const std::size_t at : {1 + 8 + 8 + 8, 1 + 8 + 8 + 8 + 1}) {
    std::string wrong = bytes;
    wrong[at] = 8;
    EXPECT_NO_THROW(server_message(bytes, -1, codec));
    EXPECT_THROW(server_message(wrong, -1, codec), PeerError);
  }
}

TEST_F(WireTest, ACountBeyondTheBytesIsRefusedBeforeAnythingIsAllocated) {
  std::string bytes = to_bytes(ServerMessage(LogEntries{}), codec);
  for (std::size_t at = 1 + 8 + 8; at < 1 + 8 + 8 + 8; ++at) bytes[at] = static_cast<char>(0x7f);
  EXPECT_THROW(server_message(bytes, -1, codec), PeerError);
}

}  // namespace
}  // namespace lockstep::internal::server
