// Two workers write one checkpoint. The machine stops before each of their calls into the file system, and each fails
// once: there is always a whole checkpoint, and it is the one from before or the new one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/checkpoint/folder/shared_save.h"
#include "lockstep/checkpoint/folder/write_checkpoint.h"
#include "lockstep/checkpoint/image.h"
#include "tests/checkpoint/model_files.h"
#include "tests/checkpoint/stepped_image.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::SharedSave;
using testing::image_of;
using testing::kLosses;
using testing::Lost;
using testing::MachineStopped;
using testing::ModelFiles;
using testing::step_in;

/// A ModelFiles that several threads may use.
class SharedFiles final : public internal::Files {
  template <class Fn>
  std::invoke_result_t<const Fn&> locked(const Fn& fn) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return fn();
  }

 public:
  explicit SharedFiles(ModelFiles& files) : files_(files) {}

  std::unique_ptr<internal::NewFile> create(const fs::path& path) override {
    return std::make_unique<Writing>(*this, locked([&] { return files_.create(path); }));
  }
  std::unique_ptr<internal::NewFile> open_to_write(const fs::path& path) override {
    return std::make_unique<Writing>(*this, locked([&] { return files_.open_to_write(path); }));
  }
  std::unique_ptr<internal::OpenFile> open(const fs::path& path) override {
    return std::make_unique<Reading>(*this, locked([&] { return files_.open(path); }));
  }
  std::unique_ptr<internal::FileLock> lock(const fs::path& path) override {
    auto lock = locked([&] { return files_.lock(path); });
    if (!lock) return nullptr;
    return std::make_unique<Lock>(*this, std::move(lock));
  }
  bool has(const fs::path& path) override {
    return locked([&] { return files_.has(path); });
  }
  bool is_folder(const fs::path& path) override {
    return locked([&] { return files_.is_folder(path); });
  }
  std::vector<std::string> list(const fs::path& folder) override {
    return locked([&] { return files_.list(folder); });
  }
  bool make_folder(const fs::path& folder) override {
    return locked([&] { return files_.make_folder(folder); });
  }
  void sync_folder(const fs::path& folder) override {
    locked([&] { files_.sync_folder(folder); });
  }
  void rename(const fs::path& from, const fs::path& to) override {
    locked([&] { files_.rename(from, to); });
  }
  void remove_file(const fs::path& path) override {
    locked([&] { files_.remove_file(path); });
  }
  void remove_folder(const fs::path& folder) override {
    locked([&] { files_.remove_folder(folder); });
  }
  bool is_locked(const fs::path& path) override {
    return locked([&] { return files_.is_locked(path); });
  }

 private:
  struct Writing final : internal::NewFile {
    Writing(SharedFiles& all, std::unique_ptr<internal::NewFile> one) : files(all), file(std::move(one)) {}
    void write(uint64_t offset, std::span<const std::byte> bytes) override {
      files.locked([&] { file->write(offset, bytes); });
    }
    void sync() override {
      files.locked([&] { file->sync(); });
    }
    SharedFiles& files;
    const std::unique_ptr<internal::NewFile> file;
  };
  struct Reading final : internal::OpenFile {
    Reading(SharedFiles& all, std::unique_ptr<internal::OpenFile> one) : files(all), file(std::move(one)) {}
    uint64_t size() const override {
      return files.locked([&] { return file->size(); });
    }
    void read(uint64_t offset, std::span<std::byte> bytes) const override {
      files.locked([&] { file->read(offset, bytes); });
    }
    SharedFiles& files;
    const std::unique_ptr<internal::OpenFile> file;
  };
  struct Lock final : internal::FileLock {
    Lock(SharedFiles& all, std::unique_ptr<internal::FileLock> one) : files(all), lock(std::move(one)) {}
    ~Lock() override {
      files.locked([&] { lock.reset(); });
    }
    bool is_in_place() const override {
      return files.locked([&] { return lock->is_in_place(); });
    }
    SharedFiles& files;
    std::unique_ptr<internal::FileLock> lock;
  };

  ModelFiles& files_;
  std::mutex mutex_;
};

const fs::path kDirectory = "runs/a";

/// One of the two: its part, and what it writes.
struct Writer {
  Writer(SharedFiles& all, int64_t step, uint64_t number, std::size_t index)
      : files(all),
        image(image_of(step)),
        plan(internal::plan_of(image)),
        save(all, kDirectory, number, {0, 1}, index, std::make_shared<internal::Deadline>()),
        folder(kDirectory / internal::checkpoint_name(step)) {
    mine.share = save.share(plan);
    mine.bytes = internal::bytes_of(plan, mine.share);
    EXPECT_GT(mine.share.size(), 0u);
  }
  void write_as_chief() {
    const internal::OtherWriters others{.save = save.number(), .wait = [&](const internal::GiveChecksums& give) {
                                          save.wait_for_others(folder, plan, give);
                                        }};
    internal::write_checkpoint(files, folder, image.run, plan, mine, &others);
    save.end();
    internal::remove_old(files, kDirectory, 2, 0, folder);
  }
  void write_as_other() { save.write(folder, plan, mine); }

  SharedFiles& files;
  const internal::Image image;
  const internal::WritePlan plan;
  SharedSave save;
  const fs::path folder;
  internal::PlannedBytes mine;
};

/// Saves as the managers of two workers do; whether both have returned.
bool save(ModelFiles& model, int64_t step) {
  SharedFiles files(model);
  bool chief_returned = false;
  bool other_returned = false;
  const auto run = [](bool& returned, const auto& work) {
    try {
      work();
      returned = true;
    } catch (const MachineStopped&) {
    } catch (const Error&) {  // of the disk, or of the other worker
    }
  };
  std::unique_ptr<Writer> chief;
  std::unique_ptr<Writer> other;
  bool begun = false;
  static uint64_t number = 0;  // no save has that of another one
  ++number;
  run(begun, [&] {
    SharedSave::clean(files, kDirectory);
    chief = std::make_unique<Writer>(files, step, number, 0);
    other = std::make_unique<Writer>(files, step, number, 1);
  });
  if (!begun) return false;
  // A writer that has ended lets go of its mark.
  std::thread writes([&, mine = std::move(other)]() mutable {
    run(other_returned, [&] { mine->write_as_other(); });
    mine.reset();
  });
  run(chief_returned, [&] { chief->write_as_chief(); });
  chief.reset();
  writes.join();
  return chief_returned && other_returned;
}

void save_three(ModelFiles& files) {
  files.make_folder(kDirectory);
  for (const int64_t step : {1, 2, 3}) EXPECT_TRUE(save(files, step));
}

/// The step of the newest one. What has a manifest is whole.
int64_t newest(ModelFiles& files) {
  for (const auto& one : internal::checkpoints_in(files, kDirectory))
    EXPECT_TRUE(one.problem.empty() || !one.has_manifest);
  const auto found = internal::whole_checkpoints_in(files, kDirectory);
  if (found.empty()) return -1;
  for (const auto& one : found) EXPECT_EQ(step_in(files, one.path), one.step);
  return found.back().step;
}

/// Goes on from what was found, and nothing is left over of the save that has failed.
void go_on(ModelFiles& files, int64_t found, int64_t call) {
  EXPECT_TRUE(save(files, found + 1)) << "behind call " << call;
  EXPECT_TRUE(save(files, found + 2)) << "behind call " << call;
  EXPECT_EQ(newest(files), found + 2) << "behind call " << call;
  EXPECT_EQ(files.list(kDirectory).size(), 2u) << "nothing is left over: call " << call;
}

int64_t calls_of_a_save() {
  ModelFiles files;
  save_three(files);
  const int64_t before = files.calls();
  EXPECT_TRUE(save(files, 4));
  return files.calls() - before;
}

TEST(SharedSweep, AStopBeforeAnyCallOfTwoWritersLeavesAWholeCheckpoint) {
  const int64_t calls = calls_of_a_save();
  EXPECT_GT(calls, 25);
  for (const Lost lost : kLosses) {
    for (int64_t n = 1; n <= calls + 1; ++n) {
      ModelFiles files;
      save_three(files);
      files.stop_at(n);
      const bool returned = save(files, 4);
      files.restart(lost);
      const int64_t found = newest(files);
      EXPECT_TRUE(found == 3 || found == 4) << found << " after a stop before call " << n;
      if (returned) {
        EXPECT_EQ(found, 4) << "a save that returned on both is durable";
      }
      go_on(files, found, n);
    }
  }
}

TEST(SharedSweep, AFailureOfAnyCallOfTwoWritersLeavesAWholeCheckpointAndTheRunGoesOn) {
  const int64_t calls = calls_of_a_save();
  for (const bool for_good : {false, true}) {
    for (int64_t n = 1; n <= calls; ++n) {
      ModelFiles files;
      save_three(files);
      for_good ? files.fail_from(n, "No space left on device") : files.fail_at(n, "Input/output error");
      const bool returned = save(files, 4);
      files.work_again();
      const int64_t found = newest(files);
      EXPECT_TRUE(found == 3 || found == 4) << found << " after call " << n << " failed";
      if (returned) {
        EXPECT_EQ(found, 4);
      }
      go_on(files, found, n);
    }
  }
}

}  // namespace
}  // namespace lockstep
