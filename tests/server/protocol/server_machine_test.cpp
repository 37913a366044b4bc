// A server's rules: what it holds, how it reads the log, and when it answers pulls.
#include "lockstep/server/protocol/server_machine.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline server {
namespace {

using Kind = LogEntry::Kind;

/// Writes down what it is asked for.
class NotingStore final : public ServerStore {
 public:
  Payload hold(const HeldPush& push) override {
    notes += " hold " + name(push);
    return refusal;
  }
  void drop(const HeldPush& push) override { notes += " drop " + name(push); }
  void commit(const LogEntry& entry, const HeldPush& push) override {
    notes += (entry.apply ? " commit " : " count ") + name(push);
  }
  Payload squares(const LogEntry& /*entry*/, std::span<const HeldPush> parts) override {
    notes += " squares" + names(parts);
    return refusal;
  }
  void round(const LogEntry& entry, std::span<const HeldPush> parts) override {
    notes += (entry.apply ? " round" : " dropped round") + names(parts);
  }
  void change(const LogEntry& /*entry*/) override { notes += " change"; }
  void freeze(const LogEntry& entry) override { notes += " freeze " + std::to_string(entry.number); }
  void release(const LogEntry& entry) override { notes += " release " + std::to_string(entry.number); }
  Payload answer(const PullRequest& /*pull*/, Position position) override {
    notes += " answer at " + std::to_string(position);
    return {};
  }

  Payload refusal;
  std::string notes;

 private:
  static std::string name(const HeldPush& push) {
    return std::to_string(push.step.step) + "." + std::to_string(push.step.attempt);
  }
  static std::string names(std::span<const HeldPush> parts) {
    std::string text;
    for (const HeldPush& part : parts) text += " " + name(part);
    return text;
  }
};

class ServerMachineTest : public ::testing::Test {
 protected:
  /// The verdict of the answer, or -1 without one.
  int push(int64_t step, uint32_t attempt = 0, uint64_t epoch = 1) {
    ServerOutput of_push;
    server.receive(PushRequest{.epoch = epoch, .step = {.step = step, .attempt = attempt}}, store, of_push);
    if (of_push.to_workers.empty()) return -1;
    last = std::get<PushAnswer>(of_push.to_workers.front().message);
    return static_cast<int>(last.verdict);
  }
  void read(Position first, std::vector<LogEntry> entries, int64_t floor = 0) {
    server.receive(LogEntries{.epoch = 1, .first = first, .entries = std::move(entries), .floor = floor}, store, out);
    while (server.has_entries()) server.read_entry(store, out);
  }
  void pull(Position position, std::optional<int64_t> after = {}) {
    server.receive(PullRequest{.epoch = 1, .from = {.worker = 3}, .position = position, .after = after}, store, out);
  }
  static LogEntry entry(Kind kind, int64_t number = 0, uint32_t attempt = 0) {
    return {.kind = kind, .attempt = attempt, .number = number};
  }

  static constexpr int kHeld = static_cast<int>(PushVerdict::kHeld);
  static constexpr int kTooLate = static_cast<int>(PushVerdict::kTooLate);
  static constexpr int kRefused = static_cast<int>(PushVerdict::kRefused);

  NotingStore store;
  ServerMachine server{1, 0};
  ServerOutput out;
  PushAnswer last;
};

TEST_F(ServerMachineTest, HoldsAPushOnceAndAnswersItEachTime) {
  EXPECT_EQ(push(0), kHeld);
  EXPECT_EQ(push(0), kHeld);
  EXPECT_EQ(push(0, 1), kHeld) << "another attempt is held apart";
  EXPECT_EQ(store.notes, " hold 0.0 hold 0.1");
  EXPECT_EQ(server.num_held(), 2u);
}

TEST_F(ServerMachineTest, AppliesTheAttemptThatTheCommitNamesAndDropsOthers) {
  push(0);
  push(0, 1);
  push(1);
  store.notes.clear();
  read(0, {entry(Kind::kCommit, 0, 1)});
  EXPECT_EQ(store.notes, " commit 0.1 drop 0.0");
  EXPECT_EQ(server.num_held(), 1u);
}

TEST_F(ServerMachineTest, AnswersThatAPushComesTooLate) {
  push(1);
  read(0, {entry(Kind::kCommit, 1), entry(Kind::kClose, 5)});
  EXPECT_EQ(push(1), kTooLate);
  EXPECT_EQ(push(1, 1), kTooLate);
  EXPECT_EQ(push(5), kTooLate);
  EXPECT_EQ(push(0), kHeld) << "a lower step that is not decided";
  EXPECT_EQ(server.num_held(), 1u);
}

TEST_F(ServerMachineTest, RefusesWhatTheStoreRefusesEachTime) {
  store.refusal = std::make_shared<int>();
  EXPECT_EQ(push(0), kRefused);
  EXPECT_EQ(last.error, store.refusal);
  EXPECT_EQ(push(0), kRefused);
  EXPECT_EQ(server.num_held(), 0u);
}

TEST_F(ServerMachineTest, DropsMessagesOfOtherEpochs) {
  EXPECT_EQ(push(0, 0, 2), -1);
  EXPECT_EQ(server.num_held(), 0u);
}

TEST_F(ServerMachineTest, ReadsEntriesOnceAndInOrder) {
  const std::vector<LogEntry> all{entry(Kind::kChange), entry(Kind::kCut, 1), entry(Kind::kRelease, 1)};
  read(1, {all[1]});
  EXPECT_EQ(server.position(), 0u) << "behind a gap";
  read(0, {all[0], all[1]});
  read(0, {all[0]});
  read(0, all);
  EXPECT_EQ(store.notes, " change freeze 1 release 1");
  EXPECT_EQ(server.position(), 3u);
}

TEST_F(ServerMachineTest, AnswersPullsBeforeItReadsOn) {
  server.receive(LogEntries{.epoch = 1, .entries = {entry(Kind::kChange), entry(Kind::kChange)}}, store, out);
  pull(0);
  EXPECT_EQ(store.notes, " answer at 0");
  server.read_entry(store, out);
  pull(2);
  server.read_entry(store, out);
  EXPECT_EQ(store.notes, " answer at 0 change change answer at 2");
}

TEST_F(ServerMachineTest, APullWaitsForItsPositionAndIsAnsweredOnce) {
  pull(2);
  pull(2);
  EXPECT_EQ(server.num_waiting_pulls(), 1u) << "the same one";
  read(0, {entry(Kind::kChange)});
  EXPECT_TRUE(out.to_workers.empty());
  read(1, {entry(Kind::kChange), entry(Kind::kChange)});
  ASSERT_EQ(out.to_workers.size(), 1u);
  EXPECT_EQ(std::get<PulledValues>(out.to_workers[0].message).position, 2u) << "before the entry behind is read";
  pull(2);
  EXPECT_EQ(out.to_workers.size(), 2u) << "one that comes again is answered again";
}

TEST_F(ServerMachineTest, APullWaitsForTheDecisionOnTheOwnStepBefore) {
  push(4);
  pull(0, 4);
  EXPECT_TRUE(out.to_workers.empty());
  read(0, {entry(Kind::kClose, 3)});
  EXPECT_TRUE(out.to_workers.empty());
  read(1, {entry(Kind::kCommit, 4)});
  EXPECT_EQ(out.to_workers.size(), 1u);
  EXPECT_EQ(server.num_waiting_pulls(), 0u);
  pull(0, 4);
  EXPECT_EQ(out.to_workers.size(), 2u);
}

TEST_F(ServerMachineTest, KeepsNothingOfWhatIsBelowTheFloor) {
  push(0);
  push(2);
  push(7);
  store.notes.clear();
  // Step 1 counted without a push; the floor holds only behind the entries that came with it.
  server.receive(LogEntries{.epoch = 1, .entries = {entry(Kind::kCommit, 0), entry(Kind::kClose, 3)}, .floor = 3},
                 store, out);
  EXPECT_EQ(push(1), kHeld);
  server.read_entry(store, out);
  EXPECT_EQ(push(1), kHeld);
  server.read_entry(store, out);
  EXPECT_EQ(push(1), kTooLate);
  EXPECT_EQ(push(3), kTooLate);
  EXPECT_EQ(store.notes, " hold 1.0 commit 0.0 drop 1.0 drop 2.0");
  EXPECT_EQ(server.num_decided(), 0u);
  read(2, {entry(Kind::kClose, 5), entry(Kind::kClose, 6)});
  EXPECT_EQ(server.num_decided(), 2u);
  read(4, {entry(Kind::kClose, 4)});
  EXPECT_EQ(server.num_decided(), 0u) << "all below 7";
  EXPECT_EQ(server.num_held(), 1u);
}

TEST_F(ServerMachineTest, AddsARoundsPartsInOrderAndDropsACancelledRound) {
  push(1);
  push(0, 2);
  push(0);
  store.notes.clear();
  read(0, {entry(Kind::kPart, 0, 2), entry(Kind::kPart, 1), entry(Kind::kSquares, 0)});
  EXPECT_EQ(store.notes, " drop 0.0 squares 0.2 1.0");
  ASSERT_EQ(out.to_chief.size(), 1u);
  EXPECT_EQ(std::get<RoundSquares>(out.to_chief[0]).round, 0);
  EXPECT_EQ(server.num_held(), 2u);
  EXPECT_EQ(push(1), kTooLate);
  ServerOutput again;
  server.repeat_to_chief(again);
  EXPECT_EQ(again.to_chief.size(), 2u) << "its position and the squares";
  LogEntry round = entry(Kind::kRound, 0);
  round.apply = false;
  read(3, {round});
  EXPECT_EQ(store.notes, " drop 0.0 squares 0.2 1.0 dropped round 0.2 1.0");
  EXPECT_EQ(server.num_held(), 0u);
  again = {};
  server.repeat_to_chief(again);
  EXPECT_EQ(again.to_chief.size(), 1u) << "the squares are not needed any more";
}

TEST_F(ServerMachineTest, TellsTheChiefAgainWhatItHasSaved) {
  read(0, {entry(Kind::kCut, 5)});
  server.saved(5, {}, out);
  server.report(out);
  ASSERT_EQ(out.to_chief.size(), 2u);
  EXPECT_EQ(std::get<CutSaved>(out.to_chief[0]).cut, 5);
  EXPECT_EQ(std::get<ServerRead>(out.to_chief[1]).position, 1u);
  ServerOutput again;
  server.repeat_to_chief(again);
  ASSERT_EQ(again.to_chief.size(), 2u);
  EXPECT_EQ(again.to_chief[1], out.to_chief[0]);
  read(1, {entry(Kind::kCut, 6)});
  again = {};
  server.repeat_to_chief(again);
  EXPECT_EQ(again.to_chief.size(), 1u) << "the next cut began, so the chief has had the last one";
}

TEST_F(ServerMachineTest, BeginsWhereARestoreBegins) {
  server = ServerMachine(1, 0, 500, 97, {99});
  EXPECT_EQ(push(96), kTooLate);
  EXPECT_EQ(push(97), kHeld);
  EXPECT_EQ(push(99), kTooLate);
  read(500, {entry(Kind::kCommit, 97)});
  EXPECT_EQ(server.position(), 501u);
  pull(500);
  EXPECT_EQ(out.to_workers.size(), 1u);
}

TEST_F(ServerMachineTest, DoesNotCommitWhatItLacks) { EXPECT_THROW(read(0, {entry(Kind::kCommit, 0)}), InternalError); }

}  // namespace
}  // namespace lockstep::internal::server
