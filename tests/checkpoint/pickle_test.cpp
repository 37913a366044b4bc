// Files of torch.save: what their pickles say, and what is made of it.
#include "lockstep/checkpoint/formats/pickle.h"

#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/exchange.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::expect_error;

/// The tensors of a pickle of these opcodes.
std::vector<internal::PickledTensor> tensors_of(const std::string& opcodes) {
  return internal::contents_of_pickle("\x80\x02" + opcodes + ".", "the pickle").tensors;
}

std::string text(const std::string& value) {
  return std::string("X") + static_cast<char>(value.size()) + std::string(3, '\0') + value;
}

TEST(Pickle, GivesTheTensorsOfNestedDictionaries) {
  const std::string storage = "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\x06tQ";
  const std::string tensor = "ctorch._utils\n_rebuild_tensor_v2\n(" + storage +
                             "K\x01K\x02K\x02\x86K\x02K\x01\x86\x89" + "ccollections\nOrderedDict\n)RtR";
  const auto found = tensors_of("ccollections\nOrderedDict\n)R(" + text("epoch") + "K\x07" + text("model") + "}(" +
                                text("w") + tensor + "u" + "u");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], (internal::PickledTensor{"model.w", "0", "FloatStorage", 6, 1, {2, 2}, {2, 1}}));
}

TEST(Pickle, GivesTheTensorsOfListsAndTuplesByTheirNumbers) {
  const std::string storage = "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\x06tQ";
  const std::string tensor = "ctorch._utils\n_rebuild_tensor_v2\n(" + storage +
                             "K\x01K\x02K\x02\x86K\x02K\x01\x86\x89" + "ccollections\nOrderedDict\n)RtR";
  // {"a": [1, t, {"w": t}], "b": (t, (t,))}
  const auto found = tensors_of("}(" + text("a") + "](K\x01" + tensor + "}" + text("w") + tensor + "se" + text("b") +
                                tensor + tensor + "\x85\x86u");
  std::vector<std::string> names;
  for (const auto& one : found) names.push_back(one.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a.1", "a.2.w", "b.0", "b.1.0"}));
  // A long list of numbers that many keys have, beside a tensor; and numbers in lists forty deep.
  std::string shared = "](";
  for (int i = 0; i < 100; ++i) shared += "K\x01";
  std::string dict = "}(" + text("w") + tensor + text("0") + shared + "eq\x07";
  for (int i = 1; i < 100; ++i) dict += text(std::to_string(i)) + "h\x07";
  EXPECT_EQ(tensors_of(dict + "u").size(), 1u);
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += "](";
  for (int i = 0; i < 40; ++i) deep += "e";
  EXPECT_EQ(tensors_of("}(" + text("w") + tensor + text("deep") + deep + "u").size(), 1u);
  // A list that holds a tensor and itself.
  const std::string cycle = "}(" + text("a") + "]q\x08(" + tensor + "h\x08" + "eu";
  expect_error<DataError>([&] { tensors_of(cycle); }, "LS-CHECKPOINT-DAMAGED");
}

TEST(Pickle, KnowsConjugatesAndNegatives) {
  const auto tensor = [](const std::string& bits) {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nComplexFloatStorage\n" + text("0") +
           text("cpu") + "K\x06tQK\x01K\x02\x85K\x01\x85\x89" + "ccollections\nOrderedDict\n)R" + bits + "tR";
  };
  const auto of = [&](const std::string& bits) { return tensors_of("}" + text("w") + tensor(bits) + "s").at(0); };
  EXPECT_TRUE(!of("").is_conj && !of("N").is_conj && !of("}").is_neg);
  EXPECT_TRUE(of("}" + text("conj") + "\x88s").is_conj);
  EXPECT_FALSE(of("}" + text("conj") + "\x89s").is_conj);
  EXPECT_TRUE(of("}(" + text("conj") + "\x88" + text("neg") + "\x88u").is_neg);
  for (const std::string& bad : {"}" + text("other") + "\x88s", "}" + text("conj") + "K\x01s", std::string("K\x01")})
    expect_error<DataError>([&] { of(bad); }, "LS-CHECKPOINT-DAMAGED");
}

/// A tensor of the storage "0".
std::string a_tensor() {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" + text("0") +
         text("cpu") + "K\x06tQK\x01K\x02\x85K\x01\x85\x89" + "ccollections\nOrderedDict\n)RtR";
}

std::vector<std::string> names_of(const std::string& opcodes) {
  std::vector<std::string> names;
  for (const auto& one : tensors_of(opcodes)) names.push_back(one.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Pickle, GivesTheTensorsWhateverStandsBesideThem) {
  const std::string deep_config = [] {  // dictionaries without a tensor, deeper than any that has one
    std::string all = "}";
    for (int i = 0; i < 60; ++i) all = "}" + text("c") + all + "s";
    return all;
  }();
  for (const std::string& beside : {
           std::string("cargparse\nNamespace\n)\x81}") + text("lr") + "K\x01sb",    // an object with attributes
           std::string("cmy.code\nState\n)\x81}") + text("w") + a_tensor() + "sb",  // with a tensor in them
           std::string("cos\nsystem\n(") + text("true") + "tR",                     // a call
           std::string("(cos\nsystem\n") + text("true") + "o",                      // OBJ
           std::string("(") + text("true") + "ios\nsystem\n",                       // INST
           std::string("cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(") + text("f8") + "K\x01K\x01tR(K\x03" +
               text("<") + "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x01tbc_codecs\nencode\n(" + text("12345678") +
               text("latin1") + "tRtR",
           std::string("ctorch\nSize\n((K\x02K\x03ttR"),
           std::string("ctorch\ndevice\n(") + text("cuda") + "K\x01tR",
           std::string("ctorch\nfloat32\n"),
           std::string("c__builtin__\nset\n(](K\x01K\x02"
                       "etR"),
           std::string("\x8f(K\x01K\x02\x90"),  // a set of protocol 4
           std::string("(K\x01\x91"),           // a frozenset
           std::string("cbuiltins\ncomplex\n(G") + std::string(8, 'a') + "G" + std::string(8, 'b') + "tR",
           std::string("C\x03"
                       "abc"),  // bytes
           std::string("B\x03") + std::string(3, '\0') + "abc",
           std::string("cpathlib\nPosixPath\n(") + text("/") + text("a") + "tR",
           std::string("cdatetime\ndatetime\n(C\x0a"
                       "1234567890tR"),
           std::string("cmy.code\nDataclass\n)}\x92}b"),  // NEWOBJ_EX
           std::string("\x8c\x02my\x8c\x01"
                       "C\x93)R"),  // STACK_GLOBAL
           std::string("V\xc3\xa4\n"),
           std::string("S'old'\n"),
           std::string("I12\n"),
           std::string("L12L\n"),
           std::string("F1.5\n"),
           std::string("\x82\x01"),
           std::string("(K\x01"
                       "2l"),
           std::string("K\x01"
                       "0N"),
           std::string("(K\x01K\x02"
                       "1N"),
           deep_config,
       }) {
    EXPECT_EQ(names_of("}(" + text("before") + beside + text("w") + a_tensor() + text("after") + beside + "u"),
              Names{"w"})
        << beside;
  }
}

TEST(Pickle, GivesTheTensorsOfEveryKindOfDictionary) {
  const std::string pair = text("w") + a_tensor();
  for (const std::string& dictionary : {
           std::string("ccollections\ndefaultdict\n(c__builtin__\nlist\ntR") + pair + "s",
           std::string("ccollections\nCounter\n(}") + pair + "stR",
           std::string("ccollections\nOrderedDict\n(](") + pair + "\x86" + "etR",
           std::string("ccollections\nOrderedDict\n)\x81") + pair + "s",
           std::string("cmy.code\nStateDict\n)\x81") + pair + "s}" + text("extra") + "K\x01sb",  // derives from dict
           std::string("cmy.code\nStateDict\n)R") + pair + "s",
           "(" + pair + "d",
       }) {
    EXPECT_EQ(names_of("}" + text("model") + dictionary + "s"), Names{"model.w"}) << dictionary;
  }
  // Attributes of a dictionary are no items of it.
  EXPECT_EQ(names_of("ccollections\nOrderedDict\n)R" + pair + "s}" + text("other") + a_tensor() + "sb"), Names{"w"});
  EXPECT_EQ(names_of("](" + a_tensor() + "K\x01" + a_tensor() + "e"), (Names{"0", "2"}));
  EXPECT_EQ(names_of("(\x88" + a_tensor() + "N" + a_tensor() + "K\x05" + a_tensor() + "(K\x01" + text("a") + "t" +
                     a_tensor() + "d"),
            (Names{"True", "None", "5", "(1, a)"}));
}

TEST(Pickle, NamesTheKeyAndTheTypeOfWhatCannotBeRead) {
  const auto refused = [](const std::string& opcodes, std::initializer_list<std::string_view> parts) {
    expect_error<DataError>([&] { tensors_of(opcodes); }, "LS-CHECKPOINT-DAMAGED", parts);
  };
  const std::string object = "cmy.code\nNet\n)\x81}" + text("w") + a_tensor() + "sb";
  refused(object, {"my.code.Net"});
  refused("}" + text("model") + object + "s", {"'model'", "my.code.Net"});
  refused("K\x01", {"'int'"});
  const auto beside =
      internal::contents_of_pickle("\x80\x02}(" + text("w") + a_tensor() + text("ema") + object + "u.", "the pickle");
  EXPECT_EQ(beside.tensors.size(), 1u);
  ASSERT_EQ(beside.passed_over.size(), 1u);
  EXPECT_EQ(beside.passed_over[0], (internal::PickledObject{"ema", "my.code.Net"}));
}

TEST(Pickle, GivesNumbersTruthValuesAndTextsByTheirNames) {
  const auto values = internal::values_of_pickle("\x80\x02}(" + text("step") + "K\x07" + text("on") + "\x88" +
                                                     text("lr") + "G" + std::string("\x3f\xe0\0\0\0\0\0\0", 8) +
                                                     text("groups") + "](" + text("a") + "e" + "u.",
                                                 "the pickle");
  EXPECT_EQ(values, (std::map<std::string, internal::PickledValue>{
                        {"step", int64_t{7}}, {"on", true}, {"lr", 0.5}, {"groups.0", std::string("a")}}));
}

TEST(Pickle, NeverCallsAnything) {
  for (const std::string& hostile : {
           std::string("cos\nsystem\n(") + text("true") + "tR",
           std::string("cbuiltins\neval\n(") + text("1") + "tR",
           std::string("cposix\nsystem\n(") + text("true") + "tR",
           std::string("(cos\nsystem\nX\x01") + std::string(3, '\0') + "ao",  // OBJ
           std::string("(") + text("x") + "ios\nsystem\n",                    // INST
           std::string("cos\nsystem\n)\x81"),
           std::string("ctorch\n_utils\n)R"),
       }) {
    expect_error<DataError>([&] { tensors_of(hostile); }, "LS-CHECKPOINT-DAMAGED");
  }
}

TEST(Pickle, RefusesWhatDoesNotFit) {
  for (const std::string& bad :
       {std::string(), std::string("0"), std::string("("), std::string("}}"), std::string("u"), std::string("}s"),
        std::string("h\x05"), std::string("t"), std::string("\x87"), std::string("}b"), std::string("Q"),
        std::string("K"), std::string("X\xff\xff\xff\xff"), std::string("\x8a\x09") + std::string(9, 'x')}) {
    expect_error<DataError>([&] { tensors_of(bad); }, "LS-CHECKPOINT-DAMAGED");
  }
  // A dictionary that holds a tensor and itself.
  expect_error<DataError>([&] { tensors_of("}q\x01(" + text("w") + a_tensor() + text("a") + "h\x01u"); },
                          "LS-CHECKPOINT-DAMAGED");
  EXPECT_TRUE(tensors_of("}" + text("a") + "]q\x01h\x01" + "as").empty()) << "a list that holds itself, and no tensor";
  // Dictionaries that hold the next one twice, thirty deep, and a tensor in the last one.
  std::string doubled = "}q\x1e" + text("w") + a_tensor() + "s";
  for (char n = 29; n > 0; --n) {
    doubled = std::string("}q") + n + "(" + text("a") + doubled + text("b") + "h" + static_cast<char>(n + 1) + "u";
  }
  expect_error<DataError>([&] { tensors_of(doubled); }, "LS-CHECKPOINT-DAMAGED");
}

TEST(Pickle, PassesOverIntegersOfAnySize) {
  const std::string large = "\x8a\x09" + std::string(8, '\x05') + std::string(1, '\0');
  EXPECT_TRUE(tensors_of("}" + text("seed") + large + "s").empty());
  expect_error<DataError>([&] { tensors_of("}" + text("seed") + "\x8a\x20" + std::string(4, 'x')); },
                          "LS-CHECKPOINT-DAMAGED");
}

TEST(Pickle, NamesATensorAsOftenAsItHasBytesFor) {
  const std::string shape = "(" + [] {
    std::string sizes;
    for (int i = 0; i < 60; ++i) sizes += "K\x01";
    return sizes;
  }() + "t";
  const std::string tensor = "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" +
                             text("0") + text("cpu") + "K\x06tQK\x01" + shape + shape + "\x89" +
                             "ccollections\nOrderedDict\n)Rt" + "R";
  std::string often;
  for (int i = 0; i < 100'000; ++i) often += "h\x07";
  expect_error<DataError>(
      [&] { tensors_of("}" + text(std::string(200, 'k')) + "(" + tensor + "q\x07" + often + "ts"); },
      "LS-CHECKPOINT-DAMAGED", {"too often"});
}

/// What a file of torch.save gives whose storage "0" is `storage`.
std::map<std::string, at::Tensor> loaded(const std::string& opcodes, const at::Tensor& storage) {
  const fs::path file = fs::temp_directory_path() / ("lockstep-pickle-" + std::to_string(getpid()) + ".pt");
  {
    caffe2::serialize::PyTorchStreamWriter writer(file.string());
    const std::string pickle = "\x80\x02" + opcodes + ".";
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeRecord("data/0", storage.data_ptr(), storage.nbytes());
    writer.writeEndOfFile();
  }
  struct Removed {
    fs::path file;
    ~Removed() { fs::remove(file); }
  } const removed{file};
  return load_tensors(file);
}

/// The opcodes of a tensor of all six elements of storage "0"; `bits` is its dictionary of conjugate and negative.
std::string six_of(const std::string& type, const std::string& bits) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + type + "\n" + text("0") +
         text("cpu") + "K\x06tQK" + std::string(1, '\0') + "K\x06\x85K\x01\x85\x89" + "ccollections\nOrderedDict\n)R" +
         bits + "tR";
}

TEST(Pickle, OfManyConjugatesOfOneStorageAsksForOneMoreStorage) {
  const at::Tensor storage = torch::view_as_complex(torch::arange(12).to(torch::kFloat).view({6, 2}));
  const std::string both = "}(" + text("conj") + "\x88" + text("neg") + "\x88u";
  std::string opcodes = "}(" + text("plain") + six_of("ComplexFloatStorage", "");
  for (const char* name : {"a", "b", "c"}) opcodes += text(name) + six_of("ComplexFloatStorage", both);
  const auto found = loaded(opcodes + "u", storage);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_TRUE(found.at("plain").equal(storage));
  EXPECT_TRUE(found.at("b").equal(storage.conj().neg()));
  EXPECT_EQ(found.at("a").data_ptr(), found.at("c").data_ptr());
  EXPECT_NE(found.at("a").data_ptr(), found.at("plain").data_ptr());
}

TEST(Pickle, OfANegativeOfTruthValuesIsRefused) {
  const std::string opcodes = "}" + text("w") + six_of("BoolStorage", "}" + text("neg") + "\x88s") + "s";
  expect_error<DataError>([&] { loaded(opcodes, torch::ones({6}, torch::kBool)); }, "LS-CHECKPOINT-DAMAGED",
                          {"'w'", "truth values"});
}

TEST(Pickle, OfEntriesThatLieOverEachOtherIsRefused) {
  const fs::path file = fs::temp_directory_path() / ("lockstep-overlap-" + std::to_string(getpid()) + ".pt");
  {
    caffe2::serialize::PyTorchStreamWriter writer(file.string());
    const std::string pickle = "\x80\x02}.";
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    const std::string bytes(1000, 'x');
    for (const char* name : {"data/0", "data/1"}) writer.writeRecord(name, bytes.data(), bytes.size());
    writer.writeEndOfFile();
  }
  EXPECT_TRUE(load_tensors(file).empty());
  std::ifstream in(file, std::ios::binary);
  std::string zip{std::istreambuf_iterator<char>(in), {}};
  in.close();
  // In the list of entries, 42 bytes from the begin of a record stands where the entry lies.
  const auto place_in_list = [&](const std::string& name) { return zip.rfind("PK\1\2", zip.rfind(name)) + 42; };
  zip.replace(place_in_list("/data/1"), 4, zip.substr(place_in_list("/data/0"), 4));
  std::ofstream(file, std::ios::binary) << zip;
  expect_error<DataError>([&] { load_tensors(file); }, "LS-CHECKPOINT-DAMAGED", {"over each other"});
  fs::remove(file);
}

}  // namespace
}  // namespace lockstep
