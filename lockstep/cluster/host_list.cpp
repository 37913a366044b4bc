#include "lockstep/cluster/host_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cluster/address.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

namespace {

constexpr std::size_t kMostDigits = 9;     // of a number in brackets
constexpr std::size_t kLongestName = 253;  // of a host in the domain name system

/// Walks through a text and says what is wrong with it where it stands.
class Reader {
 public:
  explicit Reader(const NamedText& value) : value_(value) {}

  bool at_end() const { return at_ == value_.text.size(); }
  std::size_t offset() const { return at_; }
  /// The character here; 0 at the end.
  char peek() const { return at_end() ? '\0' : value_.text[at_]; }
  /// Steps over `c`, if it stands here.
  bool take(char c) {
    if (at_end() || value_.text[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(fmt::format("'{}'", c));
  }
  /// The digits here, at least one.
  std::string digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == begin) fail("a digit");
    if (at_ - begin > kMostDigits) fail_at(begin, fmt::format("a number of at most {} digits", kMostDigits));
    return value_.text.substr(begin, at_ - begin);
  }
  int64_t number() { return std::stoll(digits()); }
  /// Everything up to one of `ends` or the end of the text.
  std::string until(const char* ends) {
    const std::size_t begin = at_;
    at_ = std::min(value_.text.find_first_of(ends, at_), value_.text.size());
    return value_.text.substr(begin, at_ - begin);
  }
  [[noreturn]] void fail(const std::string& expected) const { fail_at(at_, expected); }
  [[noreturn]] void fail_at(std::size_t offset, const std::string& expected) const {
    throw_malformed(value_, offset, expected);
  }

 private:
  const NamedText& value_;
  std::size_t at_ = 0;
};

/// The texts that a bracket stands for, "[1-3,7]"; at most `most`.
std::vector<std::string> read_bracket(Reader& reader, int64_t most) {
  std::vector<std::string> numbers;
  reader.expect('[');
  do {
    const std::size_t begin = reader.offset();
    const std::string low = reader.digits();
    const std::string high = reader.take('-') ? reader.digits() : low;
    const int64_t first = std::stoll(low);
    const int64_t last = std::stoll(high);
    if (last < first) reader.fail_at(begin, "a range whose end is not before its beginning");
    if (last - first >= most - static_cast<int64_t>(numbers.size())) {
      reader.fail_at(begin, fmt::format("a list of at most {} hosts", most));
    }
    for (int64_t n = first; n <= last; ++n) numbers.push_back(fmt::format("{:0{}}", n, low.size()));
  } while (reader.take(','));
  reader.expect(']');
  return numbers;
}

/// The hosts of one item of the list, "rack[1-2]n[01-16]-ib"; at most `most`.
std::vector<std::string> read_hosts(Reader& reader, int64_t most) {
  const std::size_t begin = reader.offset();
  std::vector<std::string> hosts = {reader.until("[],")};
  while (reader.peek() == '[') {
    const std::vector<std::string> numbers = read_bracket(reader, most);
    const std::string rest = reader.until("[],");
    if (static_cast<int64_t>(hosts.size() * numbers.size()) > most) {
      reader.fail_at(begin, fmt::format("a list of at most {} hosts", most));
    }
    std::vector<std::string> longer;
    longer.reserve(hosts.size() * numbers.size());
    for (const std::string& host : hosts) {
      // Refused before it is copied many times.
      if (host.size() + rest.size() > kLongestName) reader.fail_at(begin, "a shorter name of a host");
      for (const std::string& number : numbers) longer.push_back(host + number + rest);
    }
    hosts = std::move(longer);
  }
  if (hosts.front().empty()) reader.fail("a host");
  return hosts;
}

}  // namespace

std::vector<std::string> expand_host_list(const NamedText& value, int64_t most) {
  Reader reader(value);
  std::vector<std::string> all;
  do {
    const std::size_t begin = reader.offset();
    const int64_t left = most - static_cast<int64_t>(all.size());
    if (left == 0) reader.fail(fmt::format("a list of at most {} hosts", most));
    for (std::string& host : read_hosts(reader, left)) {
      try {
        parse_host({"a host", host});
      } catch (const ClusterError&) {
        reader.fail_at(begin, fmt::format("the name of a host, which {} is not", in_quotes(host)));
      }
      all.push_back(std::move(host));
    }
  } while (reader.take(','));
  if (!reader.at_end()) reader.fail("',' and another host");
  return all;
}

std::vector<int64_t> expand_tasks_per_node(const NamedText& value, int64_t most) {
  Reader reader(value);
  std::vector<int64_t> all;
  int64_t tasks = 0;
  do {
    const std::size_t begin = reader.offset();
    const int64_t count = reader.number();
    int64_t nodes = 1;
    if (reader.take('(')) {
      reader.expect('x');
      nodes = reader.number();
      reader.expect(')');
    }
    if (count == 0 || nodes == 0) reader.fail_at(begin, "a count from 1");
    // Both are below 10^9, so that the product does not overflow.
    if (count * nodes > most - tasks) reader.fail_at(begin, fmt::format("a list of at most {} tasks", most));
    tasks += count * nodes;
    all.insert(all.end(), static_cast<std::size_t>(nodes), count);
  } while (reader.take(','));
  if (!reader.at_end()) reader.fail("',' and another count");
  return all;
}

}  // namespace lockstep::internal::cluster
