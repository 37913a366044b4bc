// Files of other programs: plain safetensors, and what torch.save and torch::save write.
#include "lockstep/checkpoint/exchange.h"

#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::expect_error;
using Tensors = std::map<std::string, at::Tensor>;

class Exchange : public ::testing::Test {
 protected:
  Exchange() : folder_(fs::temp_directory_path() / ("lockstep-exchange-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~Exchange() override { fs::remove_all(folder_); }
  fs::path path(const std::string& name) const { return folder_ / name; }
  std::string bytes(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  const fs::path folder_;
};

void expect_equal(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).scalar_type(), value.scalar_type()) << name;
    EXPECT_TRUE(found.at(name).equal(value)) << name;
  }
}

Tensors of_every_dtype() {
  Tensors tensors;
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar,
                          at::kByte, at::kBool}) {
    tensors[c10::toString(type)] = torch::arange(6).view({2, 3}).to(type);
  }
  tensors["scalar"] = torch::tensor(1.5);
  tensors["empty"] = torch::zeros({0, 4});
  tensors["turned"] = torch::arange(6).to(torch::kFloat).view({2, 3}).t();
  return tensors;
}

TEST_F(Exchange, SafetensorsKeepEveryDtypeAndShape) {
  save_tensors(path("a.safetensors"), of_every_dtype());
  expect_equal(load_tensors(path("a.safetensors")), of_every_dtype());
  EXPECT_FALSE(fs::exists(path("a.safetensors.part")));
}

TEST_F(Exchange, SafetensorsKeepComplexTensorsWhichOthersReadAsPairs) {
  const Tensors tensors{{"single", torch::view_as_complex(torch::arange(8).to(torch::kFloat).view({2, 2, 2}))},
                        {"double", torch::full({3}, c10::complex<double>(1, -2), torch::kComplexDouble)},
                        {"scalar", torch::full({}, c10::complex<float>(3, 4), torch::kComplexFloat)},
                        {"conjugate", torch::conj(torch::full({2}, c10::complex<float>(3, 4), torch::kComplexFloat))},
                        {"none", torch::empty({0, 2}, torch::kComplexFloat)},
                        {"format", torch::full({1}, c10::complex<float>(5, 6), torch::kComplexFloat)},
                        {"pairs", torch::arange(4).to(torch::kFloat).view({2, 2})}};
  save_tensors(path("a.safetensors"), tensors);
  expect_equal(load_tensors(path("a.safetensors")), tensors);
  EXPECT_NE(bytes("a.safetensors").find("\"format\":\"pt\""), std::string::npos) << "which Python's readers ask for";
  // A file that says it of a tensor that is none.
  const auto file = [](const std::string& value, const std::string& shape) {
    const std::string head = R"({"__metadata__":{"complex:x":")" + value + R"("},"x":{"dtype":"F32","shape":[)" +
                             shape + R"(],"data_offsets":[0,8]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(head.size());
    return bytes + head + std::string(8, '\0');
  };
  write("b", file("ComplexFloat", "1,2"));
  EXPECT_EQ(load_tensors(path("b")).at("x").scalar_type(), at::kComplexFloat);
  write("b", file("yes", "2"));
  EXPECT_EQ(load_tensors(path("b")).at("x").scalar_type(), at::kFloat);
  for (const auto& [value, shape] :
       std::vector<std::pair<std::string, std::string>>{{"ComplexFloat", "2,1"}, {"ComplexDouble", "1,2"}}) {
    write("b", file(value, shape));
    expect_error<DataError>([&] { load_tensors(path("b")); }, "LS-CHECKPOINT-DAMAGED", {"'x'"});
  }
}

TEST_F(Exchange, ANameThatIsNotUtf8IsRefusedBeforeAnythingIsWritten) {
  write("a", "before");
  expect_error<UsageError>([&] { save_tensors(path("a"), {{"x\xff", torch::ones({1})}}); }, "LS-NAME", {"'x?'"});
  expect_error<UsageError>([&] { save_tensors(path("a"), {{"x", at::Tensor()}}); }, "LS-NOT-DENSE");
  EXPECT_EQ(bytes("a"), "before");
  EXPECT_FALSE(fs::exists(path("a.part")));
}

TEST_F(Exchange, ALinkStaysAndItsTargetIsReplaced) {
  write("a", "before");
  fs::create_symlink("a", path("link"));
  save_tensors(path("link"), {{"x", torch::ones({1})}});
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_TRUE(load_tensors(path("a")).at("x").equal(torch::ones({1})));
  fs::create_symlink("nowhere/b", path("dangling"));
  expect_error<DataError>([&] { save_tensors(path("dangling"), {{"x", torch::ones({1})}}); }, "LS-FILE");
}

TEST_F(Exchange, WhatIsNoPlainFileIsNotReplaced) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_directory(path("folder"));
  for (const std::string name : {"pipe", "folder"}) {
    expect_error<DataError>([&] { save_tensors(path(name), {{"x", torch::ones({1})}}); }, "LS-FILE", {name});
  }
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

TEST_F(Exchange, AFileThatHasTheNameOfTheUnfinishedOneStays) {
  write("a.part", "mine");
  save_tensors(path("a"), {{"x", torch::ones({1})}});
  EXPECT_EQ(bytes("a.part"), "mine");
  EXPECT_FALSE(fs::exists(path("a.1.part")));
}

TEST_F(Exchange, ManyThreadsSaveUnderOneNameAndTheFileIsWholeAtAnyTime) {
  const Tensors tensors{{"x", torch::arange(1000)}};
  save_tensors(path("a"), tensors);
  std::vector<std::future<void>> writers;
  for (int i = 0; i < 4; ++i) {
    writers.push_back(std::async(std::launch::async, [&] {
      for (int j = 0; j < 30; ++j) save_tensors(path("a"), tensors);
    }));
  }
  for (int i = 0; i < 60; ++i) expect_equal(load_tensors(path("a")), tensors);
  for (auto& writer : writers) EXPECT_NO_THROW(writer.get());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "nothing is left";
}

TEST_F(Exchange, NamesAreMapped) {
  save_tensors(path("a"), {{"net.w", torch::ones({1})}, {"net.b", torch::zeros({1})}, {"other", torch::ones({1})}});
  const auto found = load_tensors(
      path("a"), [](const std::string& name) { return name.starts_with("net.") ? name.substr(4) : std::string(); });
  EXPECT_EQ(found.size(), 2u);
  EXPECT_TRUE(found.contains("w") && found.contains("b"));
  expect_error<UsageError>([&] { load_tensors(path("a"), [](const std::string&) { return "x"; }); }, "LS-NAME", {"x"});
}

TEST_F(Exchange, AStateDictionaryOfTorchIsRead) {
  Tensors tensors = of_every_dtype();
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, value] : tensors) dict.insert(name, value);
  const std::vector<char> pickled = torch::pickle_save(dict);
  write("a.pt", std::string(pickled.begin(), pickled.end()));
  expect_equal(load_tensors(path("a.pt")), tensors);
}

TEST_F(Exchange, AModuleOfCppsTorchSaveIsRead) {
  torch::nn::Sequential module(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
  torch::save(module, path("a.pt").string());
  Tensors expected;
  for (const auto& item : module->named_parameters()) expected[item.key()] = item.value().detach();
  for (const auto& item : module->named_buffers()) expected[item.key()] = item.value();
  expect_equal(load_tensors(path("a.pt")), expected);
}

TEST_F(Exchange, AStateDictionaryIsWrittenWhereTheNameEndsAsTorchs) {
  Tensors tensors = of_every_dtype();
  tensors["complex"] = torch::view_as_complex(torch::arange(8).to(torch::kFloat).view({2, 2, 2}));
  tensors["slice"] = torch::arange(10'000).slice(0, 2, 6);
  tensors["parameter"] = torch::ones({3}).set_requires_grad(true);
  for (const std::string name : {"a.pt", "a.pth"}) {
    write(name, "before");
    save_tensors(path(name), tensors);
    const std::string written = bytes(name);
    EXPECT_EQ(written.substr(0, 2), "PK");
    EXPECT_LT(written.size(), 40'000u) << "of a larger storage only the tensor's part is written";
    const Tensors found = load_tensors(path(name));
    expect_equal(found, tensors);
    EXPECT_FALSE(found.at("parameter").requires_grad());
    EXPECT_FALSE(fs::exists(path(name + ".part")));
    const auto of_torch = torch::pickle_load({written.begin(), written.end()}).toGenericDict();
    EXPECT_EQ(of_torch.size(), tensors.size()) << "LibTorch itself reads it too";
  }
  save_tensors(path(".pt"), {{"x", torch::ones({1})}});
  EXPECT_EQ(bytes(".pt").substr(0, 2), "PK") << "a name may be an ending and nothing else";
  save_tensors(path("pt"), {{"x", torch::ones({1})}});
  EXPECT_NE(bytes("pt").substr(0, 2), "PK") << "a name is not an ending";
}

TEST_F(Exchange, TensorsThatShareMemoryAsOtherTypesKeepTheirOwn) {
  const at::Tensor numbers = torch::tensor({1.5F, 2.5F});
  const at::Tensor waves = torch::view_as_complex(torch::arange(4).to(torch::kFloat).view({2, 2}));
  const Tensors tensors{{"a", numbers},
                        {"b", numbers.view(torch::kInt)},
                        {"c", waves},
                        {"d", torch::view_as_real(waves)},
                        {"e", torch::view_as_real(waves)}};
  save_tensors(path("a.pt"), tensors);
  const Tensors found = load_tensors(path("a.pt"));
  expect_equal(found, tensors);
}

TEST_F(Exchange, ATensorWithoutANameComesBack) {
  for (const char* name : {"a.pt", "a.safetensors"}) {
    save_tensors(folder_ / name, {{"", torch::arange(3)}, {"b", torch::arange(2)}});
    EXPECT_EQ(load_tensors(folder_ / name).size(), 2u) << name;
    EXPECT_TRUE(load_tensors(folder_ / name).at("").equal(torch::arange(3))) << name;
  }
}

TEST_F(Exchange, ANameIsWrittenOnlyWhereItIsReadToo) {
  const std::string longest(1000, 'n');
  save_tensors(path("a.pt"), {{longest, torch::arange(3)}});
  EXPECT_TRUE(load_tensors(path("a.pt")).at(longest).equal(torch::arange(3)));
  expect_error<UsageError>(
      [&] {
        save_tensors(path("a.pt"), {{longest + "n", torch::arange(3)}});
      },
      "LS-NAME", {"1001 bytes", "1000"});
  save_tensors(path("a.safetensors"), {{longest + "n", torch::arange(3)}});
  EXPECT_TRUE(load_tensors(path("a.safetensors")).at(longest + "n").equal(torch::arange(3)));
}

TEST_F(Exchange, ATensorIsWrittenOnlyWithDimensionsThatAreReadToo) {
  const std::vector<int64_t> most(64, 1);
  save_tensors(path("a.pt"), {{"x", torch::ones({1}).reshape(most)}});
  EXPECT_EQ(load_tensors(path("a.pt")).at("x").dim(), 64);
  std::vector<int64_t> more(65, 1);
  expect_error<UsageError>(
      [&] {
        save_tensors(path("a.pt"), {{"x", torch::ones({1}).reshape(more)}});
      },
      "LS-SHAPE", {"'x'", "65 dimensions", "64"});
}

TEST_F(Exchange, AFileWithoutANameIsRefused) {
  expect_error<DataError>([] { save_tensors("", {{"x", torch::ones({1})}}); }, "LS-FILE", {"no name"});
}

TEST_F(Exchange, ZerosWithoutMemoryAreWrittenAsZeros) {
  const torch::Tensor zeros = torch::_efficientzerotensor({3}, torch::kFloat);
  for (const char* const file : {"a.pt", "a.safetensors"}) {
    save_tensors(path(file), {{"x", zeros}});
    EXPECT_TRUE(load_tensors(path(file)).at("x").equal(torch::zeros({3}))) << file;
  }
}

TEST_F(Exchange, ADtypeThatTorchsFilesDoNotHaveIsRefusedBeforeAnythingIsWritten) {
  write("a.pt", "before");
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const std::string name = c10::toString(static_cast<at::ScalarType>(i));
    if (name != "UInt16" && name != "Float8_e4m3fn") continue;  // an old LibTorch has neither
    const auto value = torch::empty({2}, static_cast<at::ScalarType>(i));
    save_tensors(path("a.safetensors"), {{"x", value}});
    expect_error<UsageError>(
        [&] {
          save_tensors(path("a.pt"), {{"x", value}});
        },
        "LS-DTYPE", {"'x'", name, "torch.save"});
  }
  expect_error<UsageError>([&] { save_tensors(path("a.pt"), {{"x\xff", torch::ones({1})}}); }, "LS-NAME", {"'x?'"});
  EXPECT_EQ(bytes("a.pt"), "before");
}

TEST_F(Exchange, AFileOfAnOldTorchIsNamedAsSuch) {
  expect_error<DataError>([] { load_tensors(fs::path(LOCKSTEP_FROM_PYTHON) / "legacy.pt"); }, "LS-CHECKPOINT-VERSION",
                          {"legacy.pt", "before PyTorch 1.6", "save it again"});
}

TEST_F(Exchange, ADamagedFileEndsInAnError) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("w", torch::arange(6).to(torch::kFloat));
  dict.insert("b", torch::arange(3));
  const std::vector<char> pickled = torch::pickle_save(dict);
  const std::string whole(pickled.begin(), pickled.end());
  int refused = 0;
  const auto attempt = [&](const std::string& damaged) {
    write("a.pt", damaged);
    try {
      load_tensors(path("a.pt"));
    } catch (const Error&) {
      ++refused;
    }
  };
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    attempt(damaged);
    if (i % 5 == 0) attempt(whole.substr(0, i));
  }
  EXPECT_GT(refused, 100) << "what is not refused was a bit that nothing reads";
}

TEST_F(Exchange, FilesThatPythonWroteAreRead) {
  const fs::path folder = LOCKSTEP_FROM_PYTHON;
  for (const std::string name : {"state_dict", "nested", "odd", "views"}) {
    auto found = load_tensors(folder / (name + ".pt"));
    for (auto& [key, value] : found) value = value.is_complex() ? torch::view_as_real(value) : value;
    expect_equal(found, load_tensors(folder / (name + ".safetensors")));
  }
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2});
  const auto model =
      strategy.make_module([] { return torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2)); });
  model.load(load_tensors(folder / "state_dict.pt"));
  expect_equal(model.state(), load_tensors(folder / "state_dict.safetensors"));
  expect_error<DataError>([&] { load_tensors(folder / "object.pt"); }, "LS-CHECKPOINT-DAMAGED",
                          {"torch.nn.modules.container.Sequential"});
}

TEST_F(Exchange, OfAWholeTrainingGivesTheTensorsBesideEverythingElse) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) warnings.emplace_back(line);
  });
  const struct Quiet {
    ~Quiet() { set_log_sink({}); }
  } quiet;
  const at::Tensor first = torch::arange(4).to(torch::kFloat).view({2, 2});
  for (const char* name : {"training-2.pt", "training-4.pt"}) {
    const fs::path file = fs::path(LOCKSTEP_FROM_PYTHON) / name;
    warnings.clear();
    expect_equal(load_tensors(file), {{"model.weight", first},
                                      {"model.bias", first.flatten() + 4},
                                      {"states.weight", first},
                                      {"optimizer.state.0.momentum_buffer", first + 8}});
    ASSERT_EQ(warnings.size(), 1u) << name;
    for (const char* part : {"'ema'", "'my_code.Ema'"}) EXPECT_NE(warnings[0].find(part), std::string::npos) << part;
    const auto of_model = [](const std::string& one) { return one.starts_with("model.") ? one.substr(6) : ""; };
    expect_equal(load_tensors(file, of_model), {{"weight", first}, {"bias", first.flatten() + 4}});
  }
}

TEST_F(Exchange, WhatIsLeftOutByItsNameMayBeOfAnyKind) {
  // A sparse tensor, and one of a dtype that nobody knows, beside a plain one.
  const auto text = [](const std::string& value) {
    return std::string("X") + static_cast<char>(value.size()) + std::string(3, '\0') + value;
  };
  const auto tensor = [&](const std::string& storage) {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + storage + "\n" + text("0") +
           text("cpu") + "K\x01tQK" + std::string(1, '\0') + "K\x01\x85K\x01\x85\x89N" + "tR";
  };
  caffe2::serialize::PyTorchStreamWriter writer(path("a.pt").string());
  const std::string pickle = "\x80\x02}(" + text("plain") + tensor("FloatStorage") + text("odd") +
                             tensor("StrangeStorage") + text("sparse") +
                             "ctorch._utils\n_rebuild_sparse_tensor\n(NNtR" + "u.";
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  const float one = 1;
  writer.writeRecord("data/0", &one, sizeof one);
  writer.writeEndOfFile();
  for (const auto& [wanted, part] :
       {std::pair("odd", "StrangeStorage"), std::pair("sparse", "_rebuild_sparse_tensor")}) {
    const auto only = [wanted = std::string(wanted)](const std::string& name) { return name == wanted ? name : ""; };
    expect_error<DataError>([&] { load_tensors(path("a.pt"), only); }, "LS-CHECKPOINT-DAMAGED",
                            {std::string("'") + wanted + "'", part});
  }
  const auto plain = [](const std::string& name) { return name == "plain" ? name : ""; };
  expect_equal(load_tensors(path("a.pt"), plain), {{"plain", torch::ones({1})}});
}

}  // namespace
}  // namespace lockstep
