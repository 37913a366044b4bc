#include "tools/run/hosts_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <system_error>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/named_text.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

using internal::in_quotes;

constexpr const char* kRemedy = "write one host a line: host, host:slots or 'host slots=K', an IPv6 number in brackets";

/// A part of a line, and where it stands.
struct Word {
  std::string_view text;
  std::size_t column;  // from 1

  /// The part from `at` on.
  Word from(std::size_t at) const { return {text.substr(at), column + at}; }
};

class LineParser {
 public:
  LineParser(const std::string& file, std::size_t line) : file_(file), line_(line) {}

  /// `words` has at least one.
  HostLine parse(const std::vector<Word>& words) const {
    HostLine result = parse_host(words.front());
    for (std::size_t i = 1; i < words.size(); ++i) {
      constexpr std::string_view kSlots = "slots=";
      if (!words[i].text.starts_with(kSlots)) refuse(words[i], "is not slots=K");
      if (result.slots != 0) refuse(words[i], "gives the slots a second time");
      result.slots = parse_slots(words[i].from(kSlots.size()));
    }
    return result;
  }

  [[noreturn]] void refuse(const Word& word, const std::string& what) const {
    throw UsageError(
        "LS-HOSTS", fmt::format("{}, line {}, column {}: {} {}", file_, line_, word.column, in_quotes(word.text), what),
        kRemedy);
  }

 private:
  HostLine parse_host(const Word& word) const {
    const bool is_bracketed = word.text.starts_with('[');
    const std::size_t close = is_bracketed ? word.text.find(']') : 0;
    if (close == std::string_view::npos) refuse(word, "has no ']'");
    const std::size_t colon = word.text.find(':', close);
    const std::string host(is_bracketed ? word.text.substr(1, close - 1) : word.text.substr(0, colon));
    if (!is_bracketed && std::count(word.text.begin(), word.text.end(), ':') > 1) {
      refuse(word, "has several colons; an IPv6 number needs brackets");
    }
    if (is_bracketed && host.find(':') == std::string::npos) refuse(word, "has brackets without an IPv6 number");
    if (is_bracketed && close + 1 < word.text.size() && colon != close + 1) {
      refuse(word.from(close + 1), "stands behind the bracket; ':' and the slots may");
    }
    if (!is_host(host)) refuse(word, "is not the name or the number of a host");
    if (internal::is_wildcard(host)) refuse(word, "stands for all addresses and names no host");
    return {line_, host, colon == std::string_view::npos ? 0 : parse_slots(word.from(colon + 1))};
  }

  static bool is_host(const std::string& text) try {
    return internal::parse_host({"a host", text}) == text;
  } catch (const ClusterError&) {
    return false;
  }

  int parse_slots(const Word& word) const {
    int slots = 0;
    const bool is_number = std::all_of(word.text.begin(), word.text.end(), [](char c) { return c >= '0' && c <= '9'; });
    for (const char c : word.text.substr(0, is_number ? 5 : 0)) slots = 10 * slots + (c - '0');
    if (slots >= 1 && slots <= kMostLocalWorkers && word.text.size() <= 5) return slots;
    refuse(word, fmt::format("is not a number of slots from 1 to {}; a port is given by --port", kMostLocalWorkers));
  }

  const std::string& file_;
  const std::size_t line_;
};

std::vector<Word> words_of(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r\v\f";
  line = line.substr(0, line.find('#'));
  std::vector<Word> words;
  for (std::size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    words.push_back({line.substr(at, end - at), at + 1});
    at = line.find_first_not_of(kBlank, end);
  }
  return words;
}

/// By its mark, in either order of bytes, or because one of its first two bytes is 0.
bool is_utf16(std::string_view text) {
  if (text.size() < 2) return false;
  return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") || (text[0] == '\0') != (text[1] == '\0');
}

bool is_same_host(const std::string& a, const std::string& b) {
  if (internal::is_ip_number(a) && internal::is_ip_number(b)) return !internal::hosts_differ(a, b);
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

bool is_loopback_host(const HostLine& host) {
  return internal::is_loopback(host.host) || is_same_host(host.host, "localhost");
}

}  // namespace

std::vector<HostLine> parse_hosts(const std::string& name, const std::string& text) {
  std::vector<HostLine> hosts;
  std::vector<Word> places;  // by host
  std::size_t line = 0;
  if (is_utf16(text)) {
    throw UsageError("LS-HOSTS", fmt::format("{} is a text in UTF-16", name), "save it as UTF-8, or as plain ASCII");
  }
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // of UTF-8: some editors write it
  std::string_view rest = text;
  if (rest.starts_with(kMark)) rest.remove_prefix(kMark.size());
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::vector<Word> words = words_of(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line;
    if (words.empty()) continue;
    const LineParser parser(name, line);
    hosts.push_back(parser.parse(words));
    places.push_back(words.front());
    for (std::size_t i = 0; i + 1 < hosts.size(); ++i) {
      if (is_same_host(hosts[i].host, hosts.back().host)) {
        parser.refuse(words.front(),
                      fmt::format("is the host of line {} again; give one line more slots", hosts[i].line));
      }
    }
  }
  if (hosts.empty()) throw UsageError("LS-HOSTS", fmt::format("{} names no host", name), kRemedy);
  const auto loopback = std::find_if(hosts.begin(), hosts.end(), is_loopback_host);
  const bool are_all_loopback = std::all_of(hosts.begin(), hosts.end(), is_loopback_host);
  if (loopback != hosts.end() && !are_all_loopback) {
    LineParser(name, loopback->line)
        .refuse(places[static_cast<std::size_t>(loopback - hosts.begin())],
                "means another host on each host; name the address that the other hosts reach");
  }
  return hosts;
}

std::vector<HostLine> read_hosts(const std::string& path) {
  constexpr std::size_t kLongest = 1 << 20;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kLongest + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    throw UsageError("LS-HOSTS",
                     fmt::format("{} cannot be read: {}", in_quotes(path), std::generic_category().message(errno)),
                     "give --hosts the path of a file");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kLongest) {
    throw UsageError("LS-HOSTS", fmt::format("{} has more than {} bytes", in_quotes(path), kLongest), kRemedy);
  }
  return parse_hosts(path, text);
}

}  // namespace lockstep::tools
