// What a loop waits for where it only reads: an epoch of records or of JPEG files, shuffled, put together to batches,
// and read ahead into the memory of two replicas; by Lockstep, by LibTorch's DataLoader, and by libjpeg-turbo alone.
// And how soon Lockstep has the first step at any place of a large data set. Prints one line of JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// After <cstdio>, which it needs.
#include <jpeglib.h>
#include <torch/data.h>
#include <torch/version.h>

#include "bench/made_images.h"
#include "lockstep/data/files.h"
#include "lockstep/lockstep.h"
#include "tools/bench/bench_report.h"
#include "tools/bench/timing.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;
namespace fs = std::filesystem;

constexpr int64_t kRecords = 61440;  // a whole number of batches
constexpr int64_t kPixels = 28 * 28;
constexpr int64_t kReplicas = 2;
constexpr int64_t kFiles = bench::kImages;
constexpr int64_t kShort = bench::kShortSide;

struct Options {
  std::string side;
  std::string work;
  int threads = 2;
  int64_t batch = 128;  // of a replica
  int64_t ahead = 4;    // steps
  std::string folder;   // of the images
  TimingOptions timing = {};
};

/// What an epoch has had.
struct Sums {
  int64_t samples = 0;
  int64_t targets = 0;  // added up
};
/// Reads an epoch.
using ReadEpoch = std::function<Sums(int64_t epoch)>;

void add(Sums& sums, const at::Tensor& input, const at::Tensor& target) {
  const auto* of = target.data_ptr<int64_t>();
  sums.samples += input.size(0);
  sums.targets = std::accumulate(of, of + target.numel(), sums.targets);
}

// Records.

struct Records {
  at::Tensor images;   // uint8 [n, 28, 28]
  at::Tensor targets;  // int64 [n]
};

/// The same bytes as those of rivals/input_data.py.
Records made_records() {
  Records made{at::empty({kRecords, 28, 28}, at::kByte), at::arange(kRecords, at::kLong).remainder(10)};
  auto* to = made.images.data_ptr<uint8_t>();
  for (int64_t i = 0; i < kRecords; ++i) {
    for (int64_t j = 0; j < kPixels; ++j) {
      *to++ = static_cast<uint8_t>((static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(j) * 40503u) >> 24);
    }
  }
  return made;
}

/// What is made of pixels: MNIST's usual numbers.
at::Tensor as_numbers(const at::Tensor& pixels) { return pixels.to(at::kFloat).div_(255).sub_(0.1307).div_(0.3081); }

/// The same by a loop of the program's own: one operator, which takes memory, in place of four.
at::Tensor by_a_loop(const at::Tensor& pixels) {
  at::Tensor numbers = at::empty(pixels.sizes(), at::kFloat);
  const auto* const from = pixels.data_ptr<uint8_t>();
  auto* const to = numbers.data_ptr<float>();
  for (int64_t i = 0; i < pixels.numel(); ++i) to[i] = (static_cast<float>(from[i]) / 255 - 0.1307f) / 0.3081f;
  return numbers;
}

using Example = torch::data::Example<>;
using MaybeSize = decltype(std::declval<torch::data::datasets::TensorDataset>().size());  // differs between versions

/// A data set as LibTorch's documentation shows it: one record for each get().
class OneByOne final : public torch::data::Dataset<OneByOne> {
 public:
  explicit OneByOne(Records records) : records_(std::move(records)) {}
  Example get(std::size_t i) override {
    const auto row = static_cast<int64_t>(i);
    return {records_.images[row], records_.targets[row]};
  }
  MaybeSize size() const override { return kRecords; }

 private:
  Records records_;
};

/// The best that can be written by hand: whole batches by index_select.
class WholeBatches final : public torch::data::BatchDataset<WholeBatches, Example> {
 public:
  explicit WholeBatches(Records records) : records_(std::move(records)) {}
  Example get_batch(torch::ArrayRef<std::size_t> rows) override {
    at::Tensor index = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
    std::copy(rows.begin(), rows.end(), index.data_ptr<int64_t>());
    return {as_numbers(records_.images.index_select(0, index)), records_.targets.index_select(0, index)};
  }
  MaybeSize size() const override { return kRecords; }

 private:
  Records records_;
};

template <class DataSet>
ReadEpoch libtorch_epochs(DataSet dataset, const Options& options) {
  auto loader = std::shared_ptr(torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      std::move(dataset), torch::data::DataLoaderOptions(static_cast<std::size_t>(options.batch))
                              .workers(static_cast<std::size_t>(options.threads))
                              .max_jobs(static_cast<std::size_t>(options.ahead * kReplicas))));
  return [loader](int64_t) {
    Sums sums;
    for (const Example& batch : *loader) add(sums, batch.data, batch.target);
    return sums;
  };
}

ReadEpoch libtorch_records(const Options& options) {
  namespace transforms = torch::data::transforms;
  if (options.side == "libtorch-batches") return libtorch_epochs(WholeBatches(made_records()), options);
  OneByOne records(made_records());
  if (options.work != "batches") {
    const auto change = [by_loop = options.work == "loops"](Example example) {
      return Example{by_loop ? by_a_loop(example.data) : as_numbers(example.data), example.target};
    };
    return libtorch_epochs(records.map(transforms::Lambda<Example>(change)).map(transforms::Stack<>()), options);
  }
  const auto stack_and_change = [](std::vector<Example> examples) {
    const Example batch = transforms::Stack<>().apply_batch(std::move(examples));
    return Example{as_numbers(batch.data), batch.target};
  };
  return libtorch_epochs(records.map(transforms::BatchLambda<std::vector<Example>, Example>(stack_and_change)),
                         options);
}

// Lockstep.

constexpr int64_t kManyRows = 10'000'000;
constexpr int kSeeks = 1000;

/// One replica for each core, although they only get batches here.
std::shared_ptr<Strategy> two_replicas() {
  return std::make_shared<MirroredStrategy>(MirroredOptions{.devices = {"cpu:0", "cpu:1"}});
}

ReadEpoch lockstep_epochs(const std::shared_ptr<Strategy>& strategy, const Dataset& dataset, const Options& options) {
  const auto data = strategy->distribute(dataset, {.global_batch = options.batch * kReplicas,
                                                   .shuffle = true,
                                                   .prefetch = options.ahead,
                                                   .threads = options.threads});
  return [strategy, data](int64_t epoch) {
    Sums sums;
    for (const PerReplica<Batch>& step : data.epoch(epoch)) {
      for (const Batch& part : step) add(sums, part.input, part.target);
    }
    return sums;
  };
}

ReadEpoch lockstep_records(const Options& options) {
  const std::shared_ptr<Strategy> strategy = two_replicas();  // as a program does that trains
  const Records records = made_records();
  const Dataset dataset = data::from_tensors(records.images, records.targets);
  const auto change = [by_loop = options.work == "loops"](Batch batch) {
    batch.input = by_loop ? by_a_loop(batch.input) : as_numbers(batch.input);
    return batch;
  };
  return lockstep_epochs(strategy, options.work == "batches" ? dataset.map_rows(change) : dataset.map(change), options);
}

/// Reads the first step at random places of a large data set, each in an epoch of its own.
nlohmann::ordered_json seek_report(const Options& options) {
  const auto strategy = two_replicas();
  const at::Tensor numbers = at::arange(kManyRows, at::kLong);
  const auto data = strategy->distribute(data::from_tensors(numbers.view({-1, 1}), numbers),
                                         {.global_batch = options.batch * kReplicas,
                                          .shuffle = true,
                                          .prefetch = options.ahead,
                                          .threads = options.threads});
  data::Cursor cursor = data.cursor();
  std::vector<int64_t> first;  // of the last step
  std::vector<double> seconds;
  const auto seek = [&](int64_t epoch, int64_t position) {
    cursor.epoch = epoch;
    cursor.position = position;
    data::DistributedDataset::Iterator step;
    seconds.push_back(seconds_for([&] {
      data.seek(cursor);
      step = data.epoch(epoch).begin();
    }));
    const at::Tensor& targets = (*step)[0].target;
    first.assign(targets.data_ptr<int64_t>(), targets.data_ptr<int64_t>() + targets.numel());
  };
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> positions(0, kManyRows - 2 * options.batch * kReplicas);
  for (int epoch = 0; epoch < kSeeks; ++epoch) {
    const int64_t position = positions(random);
    seek(epoch, position);
    if (epoch > 0) continue;
    const std::vector<int64_t> whole = std::exchange(first, {});
    seek(epoch, position + 1);
    if (!std::equal(whole.begin() + 1, whole.end(), first.begin()))
      throw std::runtime_error("a place and the one behind it do not have the same samples");
    seconds.clear();  // of the first, which warm up
  }
  return {{"ms", json_of(summarize(seconds), 1e3)},
          {"slowest_ms", *std::max_element(seconds.begin(), seconds.end()) * 1e3},
          {"rows", kManyRows}};
}

// Images.

/// By libjpeg-turbo alone: each thread reads a file, decodes its rows down to the window's last one, and writes the
/// window as three planes. No loader could do less.
void decode_alone(jpeg_decompress_struct& info, const std::string& path, std::string& file, std::string& rows,
                  uint8_t* to) {
  std::FILE* const in = std::fopen(path.c_str(), "rb");
  if (in == nullptr) throw std::runtime_error(fmt::format("'{}' cannot be read", path));
  file.resize(fs::file_size(path));
  const std::size_t got = std::fread(file.data(), 1, file.size(), in);
  std::fclose(in);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), got);
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  const int64_t top = (info.output_height - kShort) / 2;
  const int64_t left = (info.output_width - kShort) / 2;
  rows.resize(static_cast<std::size_t>(info.output_width) * 3);
  auto* row = reinterpret_cast<JSAMPROW>(rows.data());
  for (int64_t y = 0; y < top + kShort; ++y) {
    jpeg_read_scanlines(&info, &row, 1);
    if (y < top) continue;
    const unsigned char* from = row + left * 3;
    uint8_t* red = to + (y - top) * kShort;
    for (int64_t x = 0; x < kShort; ++x, from += 3) {
      red[x] = from[0];
      red[x + kShort * kShort] = from[1];
      red[x + 2 * kShort * kShort] = from[2];
    }
  }
  jpeg_abort_decompress(&info);
}

ReadEpoch libjpeg_images(const Options& options) {
  const data::ImageFolder folder = data::image_folder(options.folder);  // for the names of its files
  std::vector<int64_t> classes;
  for (const std::string& file : folder.files)
    classes.push_back(fs::path(file).parent_path().filename().string()[0] - '0');
  return [files = folder.files, classes, options](int64_t) {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> targets{0};
    const auto work = [&] {
      jpeg_decompress_struct info{};
      jpeg_error_mgr errors{};
      info.err = jpeg_std_error(&errors);
      jpeg_create_decompress(&info);
      std::string file, rows;
      at::Tensor batch = at::empty({options.batch, 3, kShort, kShort}, at::kByte);
      for (int64_t i = next++; i < kFiles; i = next++) {
        decode_alone(info, files[static_cast<std::size_t>(i)], file, rows,
                     batch.data_ptr<uint8_t>() + i % options.batch * 3 * kShort * kShort);
        targets += classes[static_cast<std::size_t>(i)];
      }
      jpeg_destroy_decompress(&info);
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < options.threads; ++t) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    return Sums{kFiles, targets};
  };
}

ReadEpoch lockstep_images(const Options& options) {
  return lockstep_epochs(
      two_replicas(),
      data::image_folder(options.folder, {.height = kShort, .width = kShort, .normalize = false}).dataset, options);
}

ReadEpoch reader_of(const Options& options) {
  const bool images = options.work == "images";
  if (options.side == "lockstep") return images ? lockstep_images(options) : lockstep_records(options);
  if (options.side == "libjpeg" && images) return libjpeg_images(options);
  if (!images && options.side != "libjpeg") return libtorch_records(options);
  throw std::runtime_error(fmt::format("{} does no {}", options.side, options.work));
}

/// Throws unless an epoch has each sample once, as far as sums can tell.
void check(const Sums& sums, bool images) {
  const int64_t count = images ? kFiles : kRecords;
  int64_t targets = 0;
  for (int64_t i = 0; i < count; ++i) targets += i % 10;
  if (sums.samples != count || sums.targets != targets)
    throw std::runtime_error(fmt::format("an epoch gave {} samples with targets of {} in place of {} and {}",
                                         sums.samples, sums.targets, count, targets));
}

nlohmann::ordered_json epochs_report(Options options) {
  const bool images = options.work == "images";
  const ReadEpoch read = reader_of(options);
  int64_t epoch = 0;
  check(read(epoch++), images);
  options.timing.warm_up_calls = 1;
  const Timing took = measure(
      [&](int64_t epochs) {
        for (int64_t i = 0; i < epochs; ++i) check(read(epoch++), images);
      },
      options.timing);
  return {{"ms", json_of(took, 1e3)},
          {"samples_per_second", static_cast<double>(images ? kFiles : kRecords) / took.median}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("An epoch of records or images, read ahead by some threads", "input_pipeline");
  app.add_option("side", options.side)
      ->required()
      ->check(CLI::IsMember({"lockstep", "libtorch", "libtorch-batches", "libjpeg"}));
  app.add_option("work", options.work)
      ->required()
      ->check(CLI::IsMember({"batches", "samples", "loops", "images", "seek"}));
  app.add_option("--threads", options.threads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", options.batch, "of a replica")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--ahead", options.ahead, "steps that are read ahead")->check(CLI::PositiveNumber);
  app.add_option("--dump", options.folder, "where the images are, or are to be made");
  app.add_option("--blocks", options.timing.blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--block-seconds", options.timing.block_seconds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);  // as many threads as were asked for, and no more
  fs::path scratch;
  int exit_code = 0;
  try {
    if (options.work == "seek" && options.side != "lockstep")
      throw std::runtime_error(fmt::format("{} does no seek", options.side));
    if (options.work == "images") {
      if (options.folder.empty()) {
        scratch = fs::temp_directory_path() / fmt::format("input_pipeline.{}", ::getpid());
        options.folder = scratch.string();
      }
      bench::make_images(options.folder);
    }
    nlohmann::ordered_json report = options.work == "seek" ? seek_report(options) : epochs_report(options);
    report["peak_memory_mib"] = static_cast<double>(peak_memory()) / (1 << 20);
    report["version"] = TORCH_VERSION;
    fmt::print("{}\n", report.dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "input_pipeline: {}\n", error.what());
    exit_code = 1;
  }
  if (!scratch.empty()) fs::remove_all(scratch);
  return exit_code;
}
