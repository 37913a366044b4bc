// Several workers write one checkpoint, each a part of it; and what happens where one of them does not.
#include "lockstep/checkpoint/folder/shared_save.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "lockstep/checkpoint/folder/file_names.h"
#include "lockstep/checkpoint/folder/write_checkpoint.h"
#include "lockstep/checkpoint/image.h"
#include "tests/checkpoint/forwarded_files.h"
#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::Deadline;
using internal::Image;
using internal::kPieceBytes;
using internal::PlannedBytes;
using internal::SharedSave;
using internal::WritePlan;
using testing::expect_error;
using testing::run_workers;
using testing::Training;

class SharedSaveTest : public ::testing::Test {
 protected:
  SharedSaveTest() : folder_(fs::temp_directory_path() / ("lockstep-shared-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~SharedSaveTest() override { fs::remove_all(folder_); }

  static std::string text_of(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::vector<std::string> names() const { return internal::host_files().list(folder_); }

  const fs::path folder_;
};

Image some_image() {
  Image image;
  image.run = {.library = "test", .strategy = "S", .replicas = 2, .workers = 3, .step = 7};
  const auto large = static_cast<int64_t>(kPieceBytes / 8) * 3 / 2;
  image.tensors.push_back({"mirrored", "large", -1, torch::arange(large)});
  image.tensors.push_back({"slot", "small", -1, torch::arange(5)});
  image.tensors.push_back({"slot", "more", -1, torch::arange(large)});
  return image;
}

/// One writer: its part, and what it writes.
struct Writer {
  Writer(const fs::path& directory, std::size_t index, std::vector<int64_t> writers = {0, 2, 5},
         internal::Files& files = internal::host_files())
      : plan(internal::plan_of(some_image())), save(files, directory, 17, std::move(writers), index, deadline) {
    mine.share = save.share(plan);
    mine.bytes = internal::bytes_of(plan, mine.share);
  }
  void write_all(const fs::path& folder) {
    const internal::OtherWriters others{.save = save.number(), .wait = [&](const internal::GiveChecksums& give) {
                                          save.wait_for_others(folder, plan, give);
                                        }};
    internal::write_checkpoint(internal::host_files(), folder, some_image().run, plan, mine, &others);
    save.end();
  }
  std::shared_ptr<Deadline> deadline = std::make_shared<Deadline>();
  WritePlan plan;
  SharedSave save;
  PlannedBytes mine;
};

TEST_F(SharedSaveTest, GivesTheFilesThatOneWorkerWrites) {
  internal::save_image(internal::host_files(), folder_ / "alone", some_image());
  Writer chief(folder_, 0);
  Writer second(folder_, 1);
  Writer third(folder_, 2);
  EXPECT_GT(second.mine.share.size(), 0u);
  EXPECT_GT(third.mine.share.size(), 0u);
  std::thread other([&] { second.save.write(folder_ / "together", second.plan, second.mine); });
  std::thread another([&] { third.save.write(folder_ / "together", third.plan, third.mine); });
  chief.write_all(folder_ / "together");
  other.join();
  another.join();
  for (const char* name : {"weights.safetensors", "optimizer.safetensors", "manifest.json"}) {
    EXPECT_EQ(text_of(folder_ / "together" / name), text_of(folder_ / "alone" / name)) << name;
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"alone", "together"})) << "nothing is left of the save";
}

TEST_F(SharedSaveTest, AWorkerThatFailsEndsTheSaveAndIsNamed) {
  internal::save_image(internal::host_files(), folder_ / "c", some_image());
  const std::string before = text_of(folder_ / "c" / "manifest.json");
  Writer chief(folder_, 0);
  {
    Writer second(folder_, 1);
    auto third = std::make_unique<Writer>(folder_, 2);
    std::thread one([&] { second.save.write(folder_ / "c", second.plan, second.mine); });
    std::thread all([&] {
      expect_error<PeerError>([&] { chief.write_all(folder_ / "c"); }, "LS-CHECKPOINT-SHARE",
                              {"worker 5", "ended, or failed"});
    });
    one.join();
    third.reset();  // before it has written anything
    all.join();
  }
  EXPECT_EQ(text_of(folder_ / "c" / "manifest.json"), before);
  internal::load_image(internal::host_files(), folder_ / "c");
  SharedSave::clean(internal::host_files(), folder_);
  EXPECT_EQ(names(), std::vector<std::string>{"c"});
}

/// Files during whose writing the save is abandoned.
class AbandoningFiles final : public testing::ForwardedFiles {
 public:
  std::unique_ptr<internal::NewFile> open_to_write(const Path& path) override {
    if (deadline) deadline->abandon();
    return ForwardedFiles::open_to_write(path);
  }
  std::shared_ptr<Deadline> deadline;
};

TEST_F(SharedSaveTest, AWorkerThatAbandonsTheSaveLeavesNoRecordAndThereIsNoCheckpoint) {
  AbandoningFiles files;
  Writer chief(folder_, 0, {0, 5});
  auto other = std::make_unique<Writer>(folder_, 1, std::vector<int64_t>{0, 5}, files);
  files.deadline = other->deadline;
  std::thread all([&] {
    expect_error<PeerError>([&] { chief.write_all(folder_ / "c"); }, "LS-CHECKPOINT-SHARE",
                            {"worker 5", "ended, or failed"});
  });
  expect_error<PeerError>([&] { other->save.write(folder_ / "c", other->plan, other->mine); }, "LS-CHECKPOINT-SHARE",
                          {"given up"});
  other.reset();
  all.join();
  EXPECT_FALSE(fs::exists(folder_ / "c" / "manifest.json"));
}

TEST_F(SharedSaveTest, AChiefThatFailsBeforeItHasMadeTheFilesEndsTheOthers) {
  auto chief = std::make_unique<Writer>(folder_, 0);
  Writer second(folder_, 1);
  std::thread one([&] {
    expect_error<PeerError>([&] { second.save.write(folder_ / "c", second.plan, second.mine); }, "LS-CHECKPOINT-SHARE",
                            {"worker 0", "ended, or failed"});
  });
  chief.reset();
  one.join();
}

TEST_F(SharedSaveTest, AWorkerWhoseProcessIsKilledEndsTheSave) {
  int ready[2];
  int alive[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(alive), 0);
  Writer chief(folder_, 0, {0, 1});
  const pid_t child = fork();
  if (child == 0) {
    const SharedSave second(internal::host_files(), folder_, 17, {0, 1}, 1, std::make_shared<Deadline>());
    char byte = 1;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    close(alive[1]);
    if (read(alive[0], &byte, 1) != 0) _exit(1);  // returns when the parent has ended
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  std::thread all(
      [&] { expect_error<PeerError>([&] { chief.write_all(folder_ / "c"); }, "LS-CHECKPOINT-SHARE", {"worker 1"}); });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  all.join();
  for (const int fd : {ready[0], ready[1], alive[0], alive[1]}) close(fd);
}

TEST_F(SharedSaveTest, AWorkerThatStopsIsNotWaitedForLongerThanThePatienceOfItsCaller) {
  Writer chief(folder_, 0, {0, 1});
  const Writer second(folder_, 1, {0, 1});  // holds its mark, and writes nothing
  chief.deadline->set_in(std::chrono::milliseconds(50));
  expect_error<PeerError>([&] { chief.write_all(folder_ / "c"); }, "LS-CHECKPOINT-SHARE",
                          {"worker 1", "did not write in time"});
}

TEST_F(SharedSaveTest, OfAManagerHasTheBytesOfTheChiefAloneWithAnyNumberOfWorkers) {
  const auto saved = [&](int64_t workers, bool all_write, bool async) {
    const fs::path folder = folder_ / (std::to_string(workers) + (all_write ? "all" : "chief") + (async ? "a" : "s"));
    run_workers({.workers = workers, .replicas = 4}, [&](Strategy& strategy) {
      Training training(strategy, 64);
      training.steps(2);
      CheckpointManager manager(training.checkpoint(),
                                {.directory = folder, .async = async, .all_workers_write = all_write});
      manager.save();
      training.steps(1);  // while it is written
      manager.save();
      manager.wait();
      EXPECT_EQ(manager.latest(), folder / "step-0000000003");
      return 0;
    });
    std::string text;
    for (const char* step : {"step-0000000002", "step-0000000003"}) {
      for (const char* name : {"weights.safetensors", "optimizer.safetensors", "replicas.safetensors"}) {
        text += text_of(folder / step / name);
      }
    }
    EXPECT_EQ(internal::host_files().list(folder),
              (std::vector<std::string>{".lock", "step-0000000002", "step-0000000003"}));
    return text;
  };
  const std::string alone = saved(1, true, true);
  EXPECT_GT(alone.size(), 1000u);
  for (const int64_t workers : {2, 3, 4}) {
    for (const bool async : {true, false}) {
      EXPECT_EQ(saved(workers, true, async), alone) << workers;
      EXPECT_EQ(saved(workers, false, async), alone) << workers;
    }
  }
}

/// The disk of one worker, which is full.
class FullFiles final : public testing::ForwardedFiles {
 public:
  std::unique_ptr<internal::NewFile> open_to_write(const fs::path& path) override {
    throw DataError("LS-FILE", "'" + path.string() + "' could not be written: No space left on device", "a test");
  }
};

TEST_F(SharedSaveTest, AnErrorOfOneWorkerIsThatOfAllAtTheNextCallAndTheNextSaveWorks) {
  FullFiles full;
  run_workers({.workers = 3, .replicas = 3}, [&](Strategy& strategy) {
    Training training(strategy);
    CheckpointManager manager(training.checkpoint(), {.directory = folder_ / "runs"});
    training.steps(1);
    manager.save();
    manager.wait();
    Checkpoint broken = training.checkpoint();
    if (strategy.worker_index() == 1) internal::CheckpointAccess::set_files(broken, full);
    CheckpointManager second(broken, {.directory = folder_ / "other"});
    second.save();
    training.steps(1);
    const auto save = [&] { second.save(); };
    if (strategy.worker_index() == 1) {
      expect_error<DataError>(save, "LS-FILE", {"No space left on device"});
    } else {
      expect_error<PeerError>(save, "LS-PEER-FAILED", {"worker 1", "No space left on device"});
    }
    EXPECT_EQ(second.latest(), std::nullopt);
    manager.save();
    manager.wait();
    EXPECT_EQ(manager.latest(), folder_ / "runs" / "step-0000000002");
    return 0;
  });
}

/// The chief's disk, where no file with tensors can be made.
class FullChiefFiles final : public testing::ForwardedFiles {
 public:
  std::unique_ptr<internal::NewFile> create(const fs::path& path) override {
    if (internal::is_writer_file(path.filename().string())) return ForwardedFiles::create(path);
    throw DataError("LS-FILE", "'" + path.string() + "' could not be made: No space left on device", "a test");
  }
};

TEST_F(SharedSaveTest, TheChiefsOwnErrorIsTheOneThatAllTell) {
  for (const bool async : {true, false}) {
    FullChiefFiles full;
    run_workers({.workers = 3, .replicas = 3}, [&](Strategy& strategy) {
      Training training(strategy);
      if (strategy.is_chief()) internal::CheckpointAccess::set_files(training.checkpoint(), full);
      CheckpointManager manager(training.checkpoint(), {.directory = folder_ / "runs", .async = async});
      training.steps(1);
      const auto save = [&] {
        manager.save();
        manager.wait();
      };
      if (strategy.is_chief()) {
        expect_error<DataError>(save, "LS-FILE", {"No space left on device"});
      } else {
        expect_error<PeerError>(save, "LS-PEER-FAILED", {"worker 0", "No space left on device"});
      }
      manager.wait();  // it was told once
      return 0;
    });
  }
}

TEST_F(SharedSaveTest, MoreWorkersThanPiecesSaveAndRestore) {
  run_workers({.workers = 3, .replicas = 3}, [&](Strategy& strategy) {
    Variable only = strategy.make_variable(torch::arange(3, torch::kFloat), {.name = "only"});
    CheckpointManager manager(Checkpoint(strategy), {.directory = folder_});
    manager.save();
    manager.wait();
    only.assign(torch::zeros({3}));
    manager.restore_latest();
    EXPECT_TRUE(only.read().equal(torch::arange(3, torch::kFloat)));
    return 0;
  });
}

TEST_F(SharedSaveTest, AFolderThatIsRemovedWhileItIsWrittenIsTakenAgain) {
  run_workers({.workers = 3, .replicas = 3}, [&](Strategy& strategy) {
    Training training(strategy);
    CheckpointManager manager(training.checkpoint(), {.directory = folder_ / "runs"});
    training.steps(1);
    manager.save();
    strategy.on_chief([&] {
      std::error_code busy;  // a writing thread may make a file in it meanwhile
      while (fs::remove_all(folder_ / "runs", busy), busy) {
      }
    });
    try {
      manager.wait();
    } catch (const Error&) {  // where it was removed before all was written
    }
    for (int i = 0; i < 2; ++i) {
      training.steps(1);
      manager.save();
    }
    manager.wait();
    EXPECT_EQ(manager.latest(), folder_ / "runs" / "step-0000000003");
    return 0;
  });
}

/// Of a worker that has another folder under that path.
class BlindFiles final : public testing::ForwardedFiles {
 public:
  bool has(const fs::path& path) override {
    return !internal::is_writer_file(path.filename().string()) && ForwardedFiles::has(path);
  }
  std::unique_ptr<internal::NewFile> create(const fs::path& path) override {
    ADD_FAILURE() << "it writes " << path;
    return ForwardedFiles::create(path);
  }
  std::unique_ptr<internal::NewFile> open_to_write(const fs::path& path) override {
    ADD_FAILURE() << "it writes " << path;
    return ForwardedFiles::open_to_write(path);
  }
};

TEST_F(SharedSaveTest, AWorkerThatDoesNotSeeTheFolderLeavesTheWritingToTheOthers) {
  BlindFiles blind;
  run_workers({.workers = 3, .replicas = 3}, [&](Strategy& strategy) {
    Training training(strategy);
    if (strategy.worker_index() == 1) internal::CheckpointAccess::set_files(training.checkpoint(), blind);
    CheckpointManager manager(training.checkpoint(), {.directory = folder_});
    training.steps(1);
    manager.save();
    manager.wait();
    const std::string digest = training.digest();
    training.steps(1);
    EXPECT_EQ(manager.restore_latest()->step, 1);
    EXPECT_EQ(training.digest(), digest);
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
