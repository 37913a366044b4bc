// Runs a fuzz target on the inputs that are given as files, without a fuzzer: the suite's check that targets compile
// and that their made inputs keep the promises.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  const auto run = [](const std::string& input) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  };
  run("");
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), {});
    if (input.empty()) {
      std::fprintf(stderr, "%s cannot be read, or is empty\n", argv[i]);
      return 1;
    }
    // What a connection brings may end anywhere.
    for (std::size_t length = 1; length <= input.size(); ++length) run(input.substr(0, length));
  }
}
