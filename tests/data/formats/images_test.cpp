// Images: decoding by the libraries that wrote them, scaling, folders, damage, and random work.
#include "lockstep/data/sources/images.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <png.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include <jpeglib.h>

#include "lockstep/data/files.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Ints = std::vector<int64_t>;

/// Bytes [height, width, channels] as a PNG file.
std::string png(const at::Tensor& pixels, int color, int depth = 8, bool interlaced = false) {
  png_structp writer = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(writer);
  std::string file;
  png_set_write_fn(
      writer, &file,
      [](png_structp self, png_bytep data, png_size_t size) {
        static_cast<std::string*>(png_get_io_ptr(self))->append(reinterpret_cast<char*>(data), size);
      },
      nullptr);
  const auto height = static_cast<png_uint_32>(pixels.size(0));
  png_set_IHDR(writer, info, static_cast<png_uint_32>(pixels.size(1)), height, depth, color,
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (color == PNG_COLOR_TYPE_PALETTE) {
    const png_color palette[] = {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}};
    png_set_PLTE(writer, info, palette, 3);
  }
  png_write_info(writer, info);
  const at::Tensor rows = pixels.contiguous();
  std::vector<png_bytep> pointers;
  for (int64_t y = 0; y < pixels.size(0); ++y) pointers.push_back(rows.data_ptr<uint8_t>() + y * rows.stride(0));
  png_write_image(writer, pointers.data());
  png_write_end(writer, nullptr);
  png_destroy_write_struct(&writer, &info);
  return file;
}

/// How many pixels, across and down, share a colour.
struct Sampling {
  int across = 2;
  int down = 2;
};

/// Bytes [height, width, channels] as a JPEG file.
std::string jpeg(const at::Tensor& pixels, J_COLOR_SPACE space, bool progressive = false, int quality = 95,
                 Sampling sampling = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(pixels.size(0));
  info.image_width = static_cast<JDIMENSION>(pixels.size(1));
  info.input_components = static_cast<int>(pixels.size(2));
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  if (info.jpeg_color_space == JCS_YCbCr) {
    info.comp_info[0].h_samp_factor = sampling.across;
    info.comp_info[0].v_samp_factor = sampling.down;
  }
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  const at::Tensor rows = pixels.contiguous();
  for (int64_t y = 0; y < pixels.size(0); ++y) {
    unsigned char* row = rows.data_ptr<uint8_t>() + y * rows.stride(0);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string file(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return file;
}

/// A picture without sharp edges: [height, width, channels].
at::Tensor smooth(int64_t height, int64_t width, int64_t channels = 3) {
  at::Tensor pixels = torch::empty({height, width, channels}, at::kByte);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) pixels[y][x][c] = (20 * c + 3 * y + 2 * x) % 240;
    }
  }
  return pixels;
}
at::Tensor noise(int64_t height, int64_t width, int64_t channels = 3) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  return torch::randint(0, 256, {height, width, channels}, generator, at::kByte);
}
at::Tensor planes(const at::Tensor& pixels) { return pixels.permute({2, 0, 1}).contiguous(); }

data::ImageOptions raw(int64_t height, int64_t width) { return {.height = height, .width = width, .normalize = false}; }

TEST(DecodeImage, HasNothingOfTheImageBeforeInItsMemory) {
  const std::string large = png(smooth(90, 80), PNG_COLOR_TYPE_RGB);
  const std::string small = png(smooth(8, 9), PNG_COLOR_TYPE_RGB);
  const at::Tensor first = data::decode_image(small, raw(8, 9)).clone();
  data::decode_image(large, raw(90, 80));
  EXPECT_TRUE(torch::equal(data::decode_image(small, raw(8, 9)), first));
  EXPECT_THROW(data::decode_image(large.substr(0, large.size() / 2), raw(90, 80)), DataError);
  EXPECT_TRUE(torch::equal(data::decode_image(small, raw(8, 9)), first));
}

TEST(DecodeImage, GivesThePixelsOfAPng) {
  const at::Tensor pixels = noise(13, 21);
  for (const bool interlaced : {false, true}) {
    EXPECT_TRUE(
        torch::equal(data::decode_image(png(pixels, PNG_COLOR_TYPE_RGB, 8, interlaced), raw(13, 21)), planes(pixels)));
  }
  const at::Tensor grey = noise(5, 4, 1);
  EXPECT_TRUE(
      torch::equal(data::decode_image(png(grey, PNG_COLOR_TYPE_GRAY), raw(5, 4)), planes(grey).expand({3, 5, 4})));
  const at::Tensor clear = noise(5, 4, 4);
  EXPECT_TRUE(
      torch::equal(data::decode_image(png(clear, PNG_COLOR_TYPE_RGBA), raw(5, 4)), planes(clear).narrow(0, 0, 3)));
  const at::Tensor wide = noise(5, 4, 6);  // each value's upper byte first
  const at::Tensor upper = planes(wide).index_select(0, torch::tensor({0, 2, 4}));
  EXPECT_TRUE(torch::equal(data::decode_image(png(wide, PNG_COLOR_TYPE_RGB, 16), raw(5, 4)), upper));
  const at::Tensor index = noise(5, 4, 1).remainder(3);
  const at::Tensor color = planes(index).to(at::kFloat) * 30 + torch::tensor({10, 20, 30}).reshape({3, 1, 1});
  EXPECT_TRUE(torch::equal(data::decode_image(png(index, PNG_COLOR_TYPE_PALETTE), raw(5, 4)), color.to(at::kByte)));
}

TEST(DecodeImage, GivesThePixelsOfAJpegAsFarAsItHasThem) {
  const at::Tensor pixels = smooth(40, 50);
  const auto error = [&](const std::string& file, const at::Tensor& expected) {
    const at::Tensor decoded = data::decode_image(file, raw(40, 50));
    return (decoded.to(at::kFloat) - planes(expected).to(at::kFloat)).abs().mean().item<float>();
  };
  EXPECT_LT(error(jpeg(pixels, JCS_RGB), pixels), 6);
  EXPECT_EQ(error(jpeg(pixels, JCS_RGB), pixels), error(jpeg(pixels, JCS_RGB, true), pixels)) << "progressive";
  const at::Tensor grey = smooth(40, 50, 1);
  EXPECT_LT(error(jpeg(grey, JCS_GRAYSCALE), grey.expand({40, 50, 3})), 6);
  // Inks as Adobe stores them: full means none. The darker of the two is their product.
  const at::Tensor inks = torch::full({40, 50, 4}, 200, at::kByte);
  EXPECT_LT(error(jpeg(inks, JCS_CMYK), torch::full({40, 50, 3}, 157, at::kByte)), 3);
}

TEST(DecodeImage, ScalesAsAntialiasedBilinearDoes) {
  const at::Tensor pixels = noise(37, 53);
  const std::string file = png(pixels, PNG_COLOR_TYPE_RGB);
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{20, 30}, {9, 60}, {80, 11}, {37, 53}, {1, 1}}) {
    data::ImageOptions options = raw(height, width);
    options.fit = data::ImageFit::kStretch;
    const at::Tensor scaled = data::decode_image(file, options);
    const at::Tensor expected =
        at::_upsample_bilinear2d_aa(planes(pixels).to(at::kFloat).unsqueeze(0), {height, width}, false);
    EXPECT_LE((scaled.to(at::kFloat) - expected[0]).abs().max().item<float>(), 0.51f) << height << " x " << width;
  }
}

TEST(DecodeImage, CutsTheMiddleOut) {
  const at::Tensor pixels = smooth(20, 40);
  const at::Tensor cut = data::decode_image(png(pixels, PNG_COLOR_TYPE_RGB), raw(20, 20));
  EXPECT_TRUE(torch::equal(cut, planes(pixels).narrow(2, 10, 20)));
  EXPECT_EQ(data::decode_image(png(smooth(1, 300), PNG_COLOR_TYPE_RGB), raw(50, 60)).sizes(), (Ints{3, 50, 60}));
  const at::Tensor number = data::decode_image(png(pixels, PNG_COLOR_TYPE_RGB), {.height = 20, .width = 20});
  EXPECT_EQ(number[1][0][0].item<float>(), (cut[1][0][0].item<float>() / 255 - 0.456f) / 0.224f);
}

TEST(DecodeImage, GivesTheBitsOfTheWholeWhereItComputesAPart) {
  const auto whole_of = [](const std::string& file, int64_t height, int64_t width) {
    return data::decode_image(file, raw(height, width));
  };
  for (const Sampling& sampling : {Sampling{1, 1}, Sampling{2, 1}, Sampling{1, 2}, Sampling{2, 2}, Sampling{4, 1}}) {
    for (const auto& [height, width] :
         {std::pair<int64_t, int64_t>{64, 151}, {157, 64}, {64, 64}, {65, 64}, {64, 700}}) {
      const std::string file = jpeg(noise(height, width), JCS_RGB, false, 95, sampling);
      const at::Tensor whole = whole_of(file, height, width);
      const at::Tensor middle = whole.narrow(1, (height - 64) / 2, 64).narrow(2, (width - 64) / 2, 64);
      EXPECT_TRUE(torch::equal(data::decode_image(file, raw(64, 64)), middle)) << height << " x " << width;
      const std::string pixels = png(whole.permute({1, 2, 0}), PNG_COLOR_TYPE_RGB);
      EXPECT_TRUE(torch::equal(data::decode_image(file, raw(31, 20)), data::decode_image(pixels, raw(31, 20))));
    }
  }
  const std::string grey = jpeg(noise(70, 200, 1), JCS_GRAYSCALE);
  EXPECT_TRUE(torch::equal(data::decode_image(grey, raw(70, 40)), whole_of(grey, 70, 200).narrow(2, 80, 40)));
  const std::string in_scans = jpeg(noise(70, 200), JCS_RGB, true);
  EXPECT_TRUE(torch::equal(data::decode_image(in_scans, raw(70, 40)), whole_of(in_scans, 70, 200).narrow(2, 80, 40)));
}

TEST(DecodeImage, FindsDamageBesideThePartThatItComputes) {
  const std::string file = jpeg(noise(300, 40), JCS_RGB);  // the middle 40 rows are wanted
  EXPECT_EQ(data::decode_image(file, raw(40, 40)).size(1), 40);
  for (const double share : {0.05, 0.3, 0.7, 0.95}) {
    const std::string cut = file.substr(0, static_cast<std::size_t>(share * static_cast<double>(file.size())));
    expect_error<DataError>([&] { data::decode_image(cut, raw(40, 40)); }, "LS-DATA-RECORD", {"JPEG"});
  }
}

TEST(DecodeImage, NamesWhatIsNoImage) {
  const auto expect_damaged = [](const std::string& file, std::initializer_list<std::string_view> values,
                                 const testing::Where& where = testing::Where::current()) {
    expect_error<DataError>([&] { data::decode_image(file, raw(8, 8)); }, "LS-DATA-RECORD", values, where);
  };
  expect_damaged("", {"0 bytes"});
  expect_damaged("GIF89a", {"6 bytes", "neither PNG nor JPEG"});
  const std::string good_png = png(noise(8, 8), PNG_COLOR_TYPE_RGB);
  const std::string good_jpeg = jpeg(smooth(64, 64), JCS_RGB);
  for (std::size_t size = 8; size < good_png.size() - 12; size += 7) expect_damaged(good_png.substr(0, size), {"PNG"});
  for (std::size_t size = 3; size < good_jpeg.size() - 2; size += 13)
    expect_damaged(good_jpeg.substr(0, size), {"JPEG"});
  std::string flipped = good_png;
  flipped[good_png.size() / 2] = static_cast<char>(flipped[good_png.size() / 2] ^ 1);
  expect_damaged(flipped, {"PNG"});
}

TEST(DecodeImage, RefusesAnImageThatIsTooLarge) {
  const std::string file = png(smooth(100, 100), PNG_COLOR_TYPE_RGB);
  data::ImageOptions options = raw(8, 8);
  options.max_pixels = 9999;
  expect_error<DataError>([&] { data::decode_image(file, options); }, "LS-DATA-RECORD", {"100 x 100", "limit of 9999"});
  options.max_pixels = 10000;
  EXPECT_EQ(data::decode_image(file, options).size(0), 3);
  std::string huge = jpeg(smooth(16, 16), JCS_RGB);
  const std::size_t sizes = huge.find("\xff\xc0") + 5;
  huge.replace(sizes, 4, std::string("\xff\0\xff\0", 4));
  expect_error<DataError>([&] { data::decode_image(huge, raw(8, 8)); }, "LS-DATA-RECORD", {"65280 x 65280"});
  expect_error<UsageError>([&] { data::decode_image(file, raw(0, 8)); }, "LS-OPTION", {".height 0"});
  expect_error<UsageError>([&] { data::decode_image(file, {.stddev = {0, 1, 1}}); }, "LS-OPTION", {".stddev"});
}

class ImageFolder : public testing::ScratchFolder {};

TEST_F(ImageFolder, HasAClassForEachFolderInSortedOrder) {
  const at::Tensor pixels = noise(10, 10);
  write("cats/b.PNG", png(pixels, PNG_COLOR_TYPE_RGB));
  write("cats/a.jpeg", jpeg(smooth(30, 20), JCS_RGB));
  write("cats/deep/c.png", png(noise(3, 3), PNG_COLOR_TYPE_RGB));
  write("cats/notes.txt", "text");
  write("ants/z.jpg", png(pixels, PNG_COLOR_TYPE_RGB));  // what it is called does not matter
  write("README", "text");
  const data::ImageFolder folder = data::image_folder(folder_.string(), raw(10, 10));
  EXPECT_EQ(folder.classes, (std::vector<std::string>{"ants", "cats"}));
  EXPECT_EQ(folder.files, (std::vector<std::string>{path("ants/z.jpg"), path("cats/a.jpeg"), path("cats/b.PNG"),
                                                    path("cats/deep/c.png")}));
  EXPECT_EQ(folder.passed_over, 1);
  EXPECT_EQ(folder.dataset.size(), 4);
  const int64_t ids[] = {2, 0, 1};
  const Batch batch = folder.dataset.read(ids);
  EXPECT_EQ(batch.input.sizes(), (Ints{3, 3, 10, 10}));
  EXPECT_EQ(batch.input.scalar_type(), at::kByte);
  EXPECT_TRUE(torch::equal(batch.input[0], planes(pixels)));
  EXPECT_TRUE(torch::equal(batch.input[1], planes(pixels)));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({int64_t{1}, int64_t{0}, int64_t{1}})));
  EXPECT_EQ(data::image_folder(folder_.string(), {.height = 4, .width = 5}).dataset.read({}).input.sizes(),
            (Ints{0, 3, 4, 5}));
}

TEST_F(ImageFolder, NamesTheFileThatIsNoImageOrOnWhichAFunctionFails) {
  write("a/1.png", png(noise(4, 4), PNG_COLOR_TYPE_RGB));
  write("a/2.png", png(noise(40, 40), PNG_COLOR_TYPE_RGB).substr(0, 200));
  write("a/3.png", "");
  const Dataset dataset = data::image_folder(folder_.string(), raw(4, 4)).dataset;
  const auto read = [&](int64_t id) { return dataset.read(std::span<const int64_t>(&id, 1)); };
  EXPECT_EQ(read(0).size(), 1);
  const auto fail = [](const Batch&) -> Batch { throw std::runtime_error("a strange image"); };
  expect_error<DataError>([&] { dataset.take(1).map(fail).read_all(); }, "LS-MAP", {quoted("a/1.png"), "strange"});
  expect_error<DataError>([&] { read(1); }, "LS-DATA-FILE", {quoted("a/2.png"), "PNG"});
  expect_error<DataError>([&] { read(2); }, "LS-DATA-FILE", {quoted("a/3.png")});
  std::filesystem::remove(path("a/1.png"));
  expect_error<DataError>([&] { read(0); }, "LS-DATA-FILE", {quoted("a/1.png")});
}

TEST_F(ImageFolder, NamesFoldersWithoutImages) {
  expect_error<DataError>([&] { data::image_folder(folder_.string()); }, "LS-DATA-FILE", {"no folders"});
  write("a/1.txt", "text");
  expect_error<DataError>([&] { data::image_folder(folder_.string()); }, "LS-DATA-FILE", {quoted("a"), ".png"});
  expect_error<DataError>([&] { data::image_folder(path("nowhere")); }, "LS-DATA-FILE", {quoted("nowhere")});
}

// Random work.

at::Generator seeded(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

TEST(RandomImages, DependOnTheGeneratorAlone) {
  const at::Tensor image = planes(noise(12, 9)).to(at::kFloat);
  const auto work = [&](uint64_t seed) {
    at::Generator generator = seeded(seed);
    const at::Tensor cropped = data::random_crop(image, {.height = 8, .width = 7, .padding = 2}, generator);
    return data::cutout(data::random_flip(cropped, generator), {.height = 3, .width = 3}, generator);
  };
  torch::manual_seed(1);
  const at::Tensor first = work(3);
  torch::manual_seed(2);
  EXPECT_TRUE(torch::equal(first, work(3)));
  EXPECT_FALSE(torch::equal(first, work(4)));
  EXPECT_EQ(image.sizes(), (Ints{3, 12, 9}));
}

TEST(RandomImages, CropsAreAllWindowsEquallyOften) {
  const at::Tensor image = torch::arange(1, 13, at::kFloat).reshape({3, 4});
  at::Generator generator = seeded(1);
  std::map<float, int> corners;
  for (int i = 0; i < 6000; ++i) {
    const at::Tensor window = data::random_crop(image, {.height = 2, .width = 3}, generator);
    const float corner = window[0][0].item<float>();
    EXPECT_EQ(window[1][2].item<float>(), corner + 6);
    ++corners[corner];
  }
  EXPECT_EQ(corners.size(), 4u);
  for (const auto& [corner, count] : corners) EXPECT_NEAR(count, 1500, 150) << corner;
  std::set<float> padded;
  for (int i = 0; i < 500; ++i) padded.insert(data::random_crop(image, {.padding = 1}, generator)[0][0].item<float>());
  EXPECT_EQ(padded, (std::set<float>{0, 1, 2, 5, 6}));
  EXPECT_EQ(data::random_crop(image, {.height = 1, .width = 1, .padding = 9}, generator).sizes(), (Ints{1, 1}));
}

TEST(RandomImages, FlipsMirrorAsOftenAsAsked) {
  const at::Tensor image = planes(noise(3, 4));
  at::Generator generator = seeded(1);
  int flips = 0;
  for (int i = 0; i < 2000; ++i) {
    const at::Tensor result = data::random_flip(image, generator, 0.25);
    const bool flipped = torch::equal(result, image.flip({2}));
    EXPECT_TRUE(flipped || torch::equal(result, image));
    flips += flipped ? 1 : 0;
  }
  EXPECT_NEAR(flips, 500, 80);
  EXPECT_TRUE(torch::equal(data::random_flip(image, generator, 0), image));
  EXPECT_TRUE(torch::equal(data::random_flip(image, generator, 1), image.flip({2})));
}

TEST(RandomImages, CutoutFillsARectangleAroundAPixel) {
  const at::Tensor image = torch::zeros({2, 6, 7});
  at::Generator generator = seeded(1);
  std::set<int64_t> counts;
  for (int i = 0; i < 300; ++i) {
    const at::Tensor result = data::cutout(image, {.height = 3, .width = 4, .fill = 1}, generator);
    EXPECT_TRUE(torch::equal(result[0], result[1]));
    counts.insert(result[0].sum().item<int64_t>());
  }
  EXPECT_EQ(*counts.rbegin(), 12);
  EXPECT_EQ(*counts.begin(), 4) << "in a corner";
  EXPECT_TRUE(
      torch::equal(data::cutout(image, {.height = 100, .width = 100, .fill = 1}, generator), torch::ones({2, 6, 7})));
  EXPECT_EQ(image.sum().item<float>(), 0);
}

TEST(RandomImages, NormaliseTakesEachChannelsOwnNumbers) {
  const at::Tensor bytes = torch::tensor({{{0, 255}}, {{51, 102}}}).to(at::kByte);
  const at::Tensor result = data::normalize(bytes, {0.5f, 0.2f}, {0.5f, 0.1f});
  EXPECT_TRUE(torch::allclose(result, torch::tensor({{{-1.0f, 1.0f}}, {{0.0f, 2.0f}}})));
  EXPECT_TRUE(torch::allclose(data::normalize(bytes.to(at::kFloat), {0, 0}, {1, 1}), bytes.to(at::kFloat)));
  expect_error<UsageError>([&] { data::normalize(bytes, {0.5f}, {0.5f}); }, "LS-OPTION");
  expect_error<UsageError>([&] { data::normalize(bytes, {0, 0}, {1, 0}); }, "LS-OPTION");
}

TEST(RandomImages, WrongCallsAreNamed) {
  const at::Tensor image = torch::zeros({3, 4, 5});
  expect_error<UsageError>([&] { data::random_crop(image, {.height = 5}, seeded(1)); }, "LS-OPTION", {"5 x 5"});
  expect_error<UsageError>([&] { data::random_crop(image, {.padding = -1}, seeded(1)); }, "LS-OPTION",
                           {"padding of -1"});
  expect_error<UsageError>([&] { data::random_crop(torch::zeros({4}), {}, seeded(1)); }, "LS-BATCH", {"random_crop"});
  expect_error<UsageError>([&] { data::random_flip(image, {}); }, "LS-OPTION", {"undefined"});
  expect_error<UsageError>([&] { data::random_flip(image, seeded(1), 1.5); }, "LS-OPTION", {"1.5"});
  expect_error<UsageError>([&] { data::cutout(image, {.height = -1}, seeded(1)); }, "LS-OPTION", {".height -1"});
}

TEST(Images, CutoutFillsWithWhatTheDtypeHolds) {
  const auto cut = [](at::ScalarType type, double fill) {
    return data::cutout(torch::zeros({1, 2, 2}).to(type), {.height = 9, .width = 9, .fill = fill}, seeded(1));
  };
  EXPECT_EQ(cut(at::kByte, 255).max().item<int64_t>(), 255);
  EXPECT_EQ(cut(at::kChar, -128).min().item<int64_t>(), -128);
  EXPECT_EQ(cut(at::kFloat, 0.5).max().item<double>(), 0.5);
  EXPECT_EQ(cut(at::kLong, 0x1p40).max().item<int64_t>(), int64_t{1} << 40);
  for (const auto& [type, fill] :
       {std::pair{at::kByte, 256.0}, std::pair{at::kByte, -1.0}, std::pair{at::kByte, 0.5}, std::pair{at::kChar, 128.0},
        std::pair{at::kLong, 0x1p63}, std::pair{at::kByte, std::nan("")}, std::pair{at::kBool, 2.0},
        std::pair{at::kFloat, 1e300}, std::pair{at::kHalf, 1e6}, std::pair{at::kBFloat16, 1e39}}) {
    expect_error<UsageError>([&, &t = type, &f = fill] { cut(t, f); }, "LS-OPTION", {".fill"});
  }
}

}  // namespace
}  // namespace lockstep
