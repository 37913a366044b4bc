#include "lockstep/train/report/report_page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/report/html_text.h"
#include "lockstep/train/report/line_chart.h"
#include "lockstep/train/report/page_style.h"
#include "lockstep/train/report/report_sections.h"

namespace lockstep::internal::inline train {

namespace {

constexpr std::string_view kBeforeRun = "<script type=\"application/json\" id=\"lockstep-run\">";
constexpr std::string_view kAfterRun = "</script>";

/// How a page's policy names a style sheet or script that stands in it.
std::string policy_hash(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::array<unsigned char, 4 * (SHA256_DIGEST_LENGTH / 3 + 1) + 1> base64{};
  EVP_EncodeBlock(base64.data(), digest.data(), SHA256_DIGEST_LENGTH);
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(base64.data()));
}

/// JSON that may stand in a script element; bytes that are no UTF-8 are replaced.
std::string text_of(const nlohmann::json& json) {
  return script_safe(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// The run with as many digits of its curves' values as a reader may want: seven. So the page has half the size.
nlohmann::json with_rounded_curves(const RunReport& run) {
  nlohmann::json json = run.to_json();
  for (const char* const part : {"curves", "validation"}) {
    for (nlohmann::json& curve : json[part]) {
      for (nlohmann::json& number : curve["points"]) {
        if (number.is_number_float())
          number = std::strtod(fmt::format("{:.7g}", number.get<double>()).c_str(), nullptr);
      }
    }
  }
  return json;
}

}  // namespace

std::string report_page(const RunReport& run) {
  std::vector<LineChart> charts;
  std::string body = summary_section(run) + "<main>" + findings_section(run);
  body += curves_section(run, charts) + speed_section(run, charts) + optimizer_section(run, charts);
  body += checkpoints_section(run) + facts_section(run) + numbers_section(run) + "</main>";
  nlohmann::json data = nlohmann::json::object();
  for (const LineChart& chart : charts) {
    if (has_points(chart)) data[chart.key] = chart_data(chart);
  }

  std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">";
  page += "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">";
  page += fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {}; "
      "base-uri 'none'; form-action 'none'\">",
      policy_hash(kPageStyle), policy_hash(kPageScript));
  page += fmt::format("<title>{}: {}</title><style>{}</style></head><body>", escaped(run.title), word_of(run.state),
                      kPageStyle);
  page += body;
  page += "<footer>Written by Lockstep. The page loads nothing, and has the run's numbers in it.</footer>\n";
  page += std::string(kBeforeRun).append(text_of(with_rounded_curves(run))).append(kAfterRun) + "\n";
  page += "<script type=\"application/json\" id=\"lockstep-charts\">" + text_of(data) + "</script>\n";
  return page + "<script>" + kPageScript + "</script></body></html>\n";
}

RunReport run_in_page(const std::string& page, const std::string& what) {
  const std::size_t found = page.find(kBeforeRun);
  const std::size_t begin = found + kBeforeRun.size();
  const std::size_t end = found == std::string::npos ? found : page.find(kAfterRun, begin);
  if (end == std::string::npos) {
    throw DataError("LS-DATA-FILE", what + " is no report of a run", "name a file that html_report has written");
  }
  try {
    return RunReport::from_json(nlohmann::json::parse(page.substr(begin, end - begin)));
  } catch (const nlohmann::json::exception& error) {
    throw DataError("LS-DATA-FILE", fmt::format("{} carries a run that cannot be read: {}", what, error.what()),
                    "name a file that html_report has written, as a whole");
  }
}

}  // namespace lockstep::internal::train
