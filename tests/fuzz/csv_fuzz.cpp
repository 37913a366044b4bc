// Any bytes as a CSV file.
#include "lockstep/data/formats/records/csv_reader.h"
#include "tests/fuzz/fuzz.h"

namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows read(const std::string& text) {
  lockstep::internal::CsvReader reader(lockstep::internal::Input("input", text, 0), ',');
  Rows rows;
  std::vector<std::string> row;
  int64_t line = 0;
  while (reader.next(row)) {
    lockstep::fuzz::check(!row.empty() && reader.line() > line,
                          "each row has fields, and a line behind the one before");
    line = reader.line();
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  fuzz::is_value_or_data_error([&] {
    const Rows rows = read(std::string(reinterpret_cast<const char*>(data), size));
    std::string text;
    for (const auto& row : rows) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        text += i == 0 ? "\"" : ",\"";
        for (const char c : row[i]) text += c == '"' ? "\"\"" : std::string(1, c);
        text += '"';
      }
      text += "\r\n";
    }
    fuzz::check(read(text) == rows, "what is read is written so that it reads the same");
  });
  return 0;
}
