#include "lockstep/comm/network/join/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/cluster/address.h"
#include "lockstep/comm/differences.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

using nlohmann::json;

/// get() would also take a fraction, of any size.
int64_t whole(const json& value) { return value.get_ref<const int64_t&>(); }

json to_json(const Member& member) {
  return {{"worker", member.worker},
          {"process", member.process},
          {"host", member.host},
          {"host_id", member.host_id},
          {"address", without_zone(member.address)},
          {"port", member.port},
          {"datagram_port", member.datagram_port}};
}

Member member_of(const json& value) {
  return {.worker = whole(value.at("worker")),
          .process = whole(value.at("process")),
          .host = value.at("host").get<std::string>(),
          .host_id = value.at("host_id").get<std::string>(),
          .address = value.at("address").get<std::string>(),
          .port = static_cast<uint16_t>(whole(value.at("port"))),
          .datagram_port = static_cast<uint16_t>(whole(value.at("datagram_port")))};
}

/// What `read` makes of the text; nothing where encode() does not make this text of it: a number may have been cut.
template <class Read>
auto decoded(const std::string& text, const Read& read) -> std::optional<decltype(read(json()))> try {
  auto result = read(json::parse(text));
  if (encode(result) != text) return {};
  return result;
} catch (const json::exception&) {
  return {};
}

/// Texts of a host may hold any bytes; JSON takes UTF-8 only.
std::string dumped(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

/// Whether two addresses that are known are certainly different. Another worker may have sent any text.
bool addresses_differ(const std::string& a, const std::string& b) try {
  if (a.empty() || b.empty()) return false;
  const Address one = parse_address({"a worker's address", a});
  const Address other = parse_address({"a worker's address", b});
  return one.port != other.port || hosts_differ(one.host, other.host);
} catch (const ClusterError&) {
  return true;
}

}  // namespace

std::string Member::name() const { return fmt::format("worker {} (process {} on host {})", worker, process, host); }

std::string encode(const Joiner& joiner) {
  return dumped({{"member", to_json(joiner.member)},
                 {"num_workers", joiner.num_workers},
                 {"must_match", joiner.must_match},
                 {"expected", json(joiner.expected)}});
}

std::string encode(const Members& members) {
  json all = json::array();
  for (const Member& member : members.all) all.push_back(to_json(member));
  return dumped({{"members", all}, {"session", members.session}});
}

std::string encode(const Attachment& attachment) {
  return dumped({{"worker", attachment.worker},
                 {"to", attachment.to},
                 {"purpose", static_cast<int>(attachment.purpose)},
                 {"session", attachment.session}});
}

std::optional<Joiner> decode_joiner(const std::string& text) {
  return decoded(text, [](const json& value) {
    return Joiner{.member = member_of(value.at("member")),
                  .num_workers = whole(value.at("num_workers")),
                  .must_match = value.at("must_match").get<std::string>(),
                  .expected = value.at("expected").get<std::vector<std::string>>()};
  });
}

std::optional<Members> decode_members(const std::string& text) {
  return decoded(text, [](const json& value) {
    Members members;
    members.session = value.at("session").get<std::string>();
    for (const json& one : value.at("members")) members.all.push_back(member_of(one));
    return members;
  });
}

std::optional<Attachment> decode_attachment(const std::string& text) {
  auto attachment = decoded(text, [](const json& value) {
    return Attachment{.worker = whole(value.at("worker")),
                      .to = whole(value.at("to")),
                      .purpose = static_cast<Attachment::Purpose>(static_cast<uint8_t>(whole(value.at("purpose")))),
                      .session = value.at("session").get<std::string>()};
  });
  if (attachment && attachment->purpose != Attachment::Purpose::kControl &&
      attachment->purpose != Attachment::Purpose::kData) {
    return {};
  }
  return attachment;
}

void set_zone(std::vector<Member>& members, const std::string& zone) {
  for (Member& member : members) member.address = in_zone(member.address, zone);
}

std::string objection_to(const Joiner& joiner, const Joiner& chief) {
  const Member& member = joiner.member;
  if (joiner.num_workers != chief.num_workers) {
    return fmt::format("{} was told that there are {} workers, and {} was told {}", member.name(), joiner.num_workers,
                       chief.member.name(), chief.num_workers);
  }
  if (member.worker < 0 || member.worker >= chief.num_workers) {
    return fmt::format("process {} on host {} wants to be worker {} of {}", member.process, member.host, member.worker,
                       chief.num_workers);
  }
  if (joiner.must_match != chief.must_match) {
    const auto [theirs, ours] = first_difference(joiner.must_match, chief.must_match);
    return fmt::format("{} has '{}', and {} has '{}'", member.name(), theirs, chief.member.name(), ours);
  }
  // Worker 0 has been found, by whatever name.
  for (std::size_t w = 1; w < std::min(joiner.expected.size(), chief.expected.size()); ++w) {
    if (!addresses_differ(joiner.expected[w], chief.expected[w])) continue;
    return fmt::format("{} was told that worker {} is at {}, and {} was told {}", member.name(), w, joiner.expected[w],
                       chief.member.name(), chief.expected[w]);
  }
  return {};
}

}  // namespace lockstep::internal::comm
