// Data that has changed since a cursor was saved is refused, and the file that has changed is named.
#include "lockstep/data/sources/files_digest.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "lockstep/data/sources/record_files.h"
#include "tests/data/dealt_numbers.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::numbers_in;

class Changed : public testing::ScratchFolder {
 protected:
  /// The cursor of `make()`'s data is taken, `change()` is called, and the cursor is given to `make()`'s data again.
  template <class Make>
  static void expect_named(const Make& make, const std::function<void()>& change,
                           std::initializer_list<std::string_view> values,
                           const testing::Where& where = testing::Where::current()) {
    MirroredStrategy strategy({.devices = lanes(1)});
    const auto distribute = [&] { return strategy.distribute(make(), {.global_batch = 2}); };
    const data::Cursor cursor = data::cursor_from_json(data::to_json(distribute().cursor()));
    distribute().seek(cursor);
    change();
    expect_error<DataError>([&] { distribute().seek(cursor); }, "LS-DATA-CHANGED", values, where);
  }
};

TEST_F(Changed, TextIsNamed) {
  std::string text(4000, 'a');
  const std::string file = write("a.txt", text);
  const auto make = [&] { return data::text(file, 8).train.shuffle(1).take(20); };
  text[1500] = 'b';  // beyond what the pipeline takes, and where no sample of a digest would look
  expect_named(make, [&] { write("a.txt", text); }, {file});
  const data::Text parts = data::text(file, 8);
  EXPECT_NE(parts.train.source()->digest(), parts.evaluate.source()->digest());
  EXPECT_NE(parts.train.source()->digest(), data::text(file, 9).train.source()->digest());
}

TEST_F(Changed, TokensAreNamed) {
  const std::string file = write("a.bin", std::string(4000, 'a'));
  const auto make = [&] { return data::tokens(file, {.context = 8}); };
  expect_named(make, [&] { write("a.bin", std::string(3999, 'a') + "b"); }, {file});
}

TEST_F(Changed, CsvIsNamed) {
  std::string rows;
  for (int i = 0; i < 3000; ++i) rows += "1,2\n";
  const std::string file = write("a.csv", "a,b\n" + rows);
  const auto make = [&] { return data::csv(file); };
  rows[3000] = '3';
  expect_named(make, [&] { write("a.csv", "a,b\n" + rows); }, {file});
  EXPECT_NE(make().source()->digest(), data::csv(file, {.targets = {"a"}}).source()->digest());
}

TEST_F(Changed, CifarIsNamed) {
  const std::string records(3 * 3073, '\1');
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                           "data_batch_5.bin", "test_batch.bin"})
    write(name, records);
  const auto make = [&] { return data::cifar10(folder_.string()).train; };
  std::string changed = records;
  changed[4000] = 'x';
  expect_named(make, [&] { write("data_batch_3.bin", changed); }, {path("data_batch_3.bin")});
}

TEST_F(Changed, IdxIsNamed) {
  const auto word = [](int value) {
    return std::string{'\0', '\0', static_cast<char>(value >> 8), static_cast<char>(value)};
  };
  for (const char* part : {"train", "t10k"}) {
    write(std::string(part) + "-images-idx3-ubyte",
          word(0x803) + word(4) + word(28) + word(28) + std::string(4 * 784, '\1'));
    write(std::string(part) + "-labels-idx1-ubyte", word(0x801) + word(4) + std::string(4, '\2'));
  }
  const auto make = [&] { return data::idx(folder_.string()).train.shuffle(1).take(2); };
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}) {
    const auto change = [&] {
      std::fstream file(path(name), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end).put('\3');
    };
    expect_named(make, change, {quoted(name)});
  }
}

TEST_F(Changed, AnImageIsNamedAndSoAreOtherStages) {
  for (const char* name : {"cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png"}) write(name, std::string("no image"));
  const auto make = [&] { return data::image_folder(folder_.string(), {.height = 2, .width = 2}).dataset; };
  expect_named(make, [&] { write("cat/2.png", "no photo"); }, {path("cat/2.png")});
  const Dataset with_slash = data::image_folder(folder_.string() + "/", {.height = 2, .width = 2}).dataset;
  EXPECT_EQ(with_slash.source()->digest(), make().source()->digest()) << "one folder";
  expect_named(make, [&] { write("dog/3.png", "an image of another size"); }, {path("dog/3.png")});
  int64_t seed = 1;
  expect_named([&] { return make().shuffle(static_cast<uint64_t>(seed)); }, [&] { seed = 2; }, {folder_.string()});
  expect_named(make, [&] { write("dog/5.png", "a new one"); }, {"4 samples", folder_.string()});
}

TEST_F(Changed, TheOrderOfClassesIsNoticed) {
  for (const char* name : {"cat/1.png", "cat/2.png", "dog/3.png"}) write(name, std::string("no image"));
  std::vector<std::string> classes{"cat", "dog"};
  const auto make = [&] {
    return data::image_folder(folder_.string(), {.height = 2, .width = 2, .classes = classes}).dataset;
  };
  expect_named(make, [&] { classes = {"dog", "cat"}; }, {path("dog/3.png"), path("cat/2.png"), "order"});
}

TEST_F(Changed, AFileThatWasAddedIsNamed) {
  const auto csv = [&](const char* name, const std::string& rows) { return write(name, "a,b\n" + rows); };
  const std::string first = csv("1.csv", "1,2\n3,4\n");
  const std::string last = csv("3.csv", "5,6\n");
  const std::string added = (std::filesystem::path(first).parent_path() / "2.csv").string();
  bool is_there = false;
  const auto make = [&] {
    const Dataset both = data::csv(first).concatenate(data::csv(last));
    return is_there ? data::csv(first).concatenate(data::csv(added)).concatenate(data::csv(last)) : both;
  };
  expect_named(make,
               [&] {
                 csv("2.csv", "7,8\n");
                 is_there = true;
               },
               {"3 samples", "size is 4", "'" + added + "' was added"});
}

TEST_F(Changed, AnImageThatWasAddedToManyIsNamed) {
  for (int i = 100; i < 400; ++i) write("cat/" + std::to_string(i) + ".png", "image " + std::to_string(i));
  const auto make = [&] { return data::image_folder(folder_.string(), {.height = 2, .width = 2}).dataset; };
  for (const char* name : {"cat/099.png", "cat/250a.png", "cat/400.png"}) {
    expect_named(make, [&] { write(name, "a new one"); }, {"'" + path(name) + "' was added"});
  }
}

TEST_F(Changed, OneOfTwoJoinedDataSetsIsNamed) {
  const std::string file = write("b.bin", std::string(80, 'a'));
  const std::string first = write("a.bin", std::string(80, 'a'));
  for (const bool zips : {false, true}) {
    const auto make = [&] {
      const Dataset one = data::tokens(first, {.context = 4});
      const Dataset other = data::tokens(file, {.context = 4});
      return zips ? one.zip(other) : one.concatenate(other);
    };
    expect_named(make, [&] { write("b.bin", std::string(79, 'a') + (zips ? "c" : "b")); }, {file});
  }
}

TEST_F(Changed, AFileOfRecordsIsNamed) {
  for (const bool of_lines : {true, false}) {
    const std::string folder = of_lines ? "lines/" : "tf_records/";
    for (const char* name : {"a", "b", "d"}) write(folder + name, "1\n2\n3\n4\n");
    const auto make = [&] {
      const std::vector<std::string> paths{path(folder + "*")};
      return data::from_records(of_lines ? data::lines(paths) : data::tf_records(paths), testing::parse_number)
          .shuffle(3);
    };
    expect_named(make, [&] { write(folder + "b", "1\n2\n3\n5\n"); }, {quoted(folder + "b") + " has changed"});
    expect_named(make, [&] { write(folder + "d", "1\n2\n3\n"); }, {quoted(folder + "d") + " has changed"});
    expect_named(make, [&] { write(folder + "c", "7\n"); }, {"3 files", "has 4", quoted(folder + "c") + " was added"});
    expect_named(make, [&] { std::filesystem::remove(path(folder + "a")); }, {"4 files", "has 3"});
  }
}

TEST(Cursors, OfAStreamNameTheFileThatHasChanged) {
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) {
    paths.push_back(::testing::TempDir() + "/lockstep_changed_" + std::to_string(getpid()) + "_" + std::to_string(i));
    std::ofstream(paths.back()) << "contents " << i;
  }
  class Named final : public data::StreamSource {
   public:
    explicit Named(std::vector<std::string> paths) : paths_(std::move(paths)) {}
    std::unique_ptr<data::StreamReader> open(const data::StreamPass& pass,
                                             const data::StreamPosition& position) const override {
      return numbers_in({5}).source()->open(pass, position);
    }
    std::string describe() const override { return "named files"; }
    std::vector<File> files() const override {
      std::vector<File> files;
      for (const std::string& path : paths_) files.push_back({path, internal::digest_of_file(path)});
      return files;
    }

   private:
    const std::vector<std::string> paths_;
  };
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto distribute = [&] {
    return strategy.distribute(Stream(std::make_shared<Named>(paths)), {.global_batch = 2});
  };
  const data::Cursor cursor = distribute().cursor();
  distribute().seek(cursor);
  std::ofstream(paths[2]) << "contents of another kind";
  expect_error<DataError>([&] { distribute().seek(cursor); }, "LS-DATA-CHANGED", {paths[2]});
  std::ofstream(paths[0]) << "and here";
  expect_error<DataError>([&] { distribute().seek(cursor); }, "LS-DATA-CHANGED", {"several"});
  const data::Cursor later = distribute().cursor();
  paths.insert(paths.begin() + 1, paths[0] + "_more");
  std::ofstream(paths[1]) << "one more";
  expect_error<DataError>([&] { distribute().seek(later); }, "LS-DATA-CHANGED",
                          {"4 files", "has 5", "'" + paths[1] + "' was added"});
  std::swap(paths[0], paths[3]);
  const data::Cursor of_order = distribute().cursor();
  std::swap(paths[0], paths[3]);
  expect_error<DataError>([&] { distribute().seek(of_order); }, "LS-DATA-CHANGED", {"another order"});
  for (const std::string& path : paths) std::remove(path.c_str());
}

}  // namespace
}  // namespace lockstep
