#include "core/launch/options/hosts.h"

#include <arpa/inet.h>
#include <hora/printable.h>
#include <netinet/in.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/launch/command/command.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

template <class... Values>
[[noreturn]] void reject(fmt::format_string<Values...> format, Values&&... values) {
  throw Refused{fmt::format(format, std::forward<Values>(values)...)};
}

void check_host_name(std::string_view name, std::string_view text) {
  if (is_host_name(name)) return;
  reject(
      "host {}: a name has up to 253 letters, digits, \".\", \"_\", \":\" and \"-\", the first of "
      "them no \"-\"",
      in_quotes(text));
}

bool is_ipv6(std::string_view text) {
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

int read_slots(std::string_view text, std::string_view host, std::string_view what) {
  const auto number = parse_integer(text, 1, kMostRanks);
  if (number) return *number;
  reject("host {}: {} is no number of {}: {}", in_quotes(host), in_quotes(text), what,
         number.error());
}

struct Address {
  std::string_view host;                 ///< without brackets
  std::optional<std::string_view> port;  ///< or slots
};

/// "host:port", "host", "[::1]:port" or "[::1]".
Address split_address(std::string_view text) {
  const std::size_t bracket = text.starts_with('[') ? text.find(']') : text.npos;
  const std::size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  Address address{text.substr(0, colon), std::nullopt};
  if (colon != text.npos) address.port = text.substr(colon + 1);
  if (bracket != text.npos && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  return address;
}

/// "a", "a:2", "[::1]" or "[::1]:2". With `address_alone`, "fe80::1" is an address, too, because
/// its slots follow elsewhere.
HostSlots read_host(std::string_view text, bool address_alone) {
  Address address = split_address(text);
  const std::string quoted = in_quotes(text);
  if (address_alone && is_ipv6(text)) {
    address = {text, std::nullopt};
  } else if (text.starts_with('[') ? !is_ipv6(address.host)
                                   : address.port.value_or("").find(':') != text.npos) {
    reject("host {}: an IPv6 address stands in brackets, as in [fe80::1] or [fe80::1]:2", quoted);
  }
  check_host_name(address.host, text);
  HostSlots host{.name = std::string(address.host), .counted = address.port.has_value()};
  if (address.port) host.slots = read_slots(*address.port, text, "slots");
  return host;
}

/// Hosts in the order in which they are first named, with the sums of their slots.
class HostSum {
 public:
  void add(HostSlots host) {
    if (host.slots > kMostRanks - total_) {
      reject("with host {} there are more than {} slots, which is the limit", in_quotes(host.name),
             kMostRanks);
    }
    total_ += host.slots;
    const auto [place, is_new] = places_.try_emplace(host.name, hosts_.size());
    if (is_new) return hosts_.push_back(std::move(host));
    HostSlots& known = hosts_[place->second];
    known.slots += host.slots;
    known.counted = true;
  }
  std::vector<HostSlots> take() { return std::move(hosts_); }

 private:
  std::vector<HostSlots> hosts_;
  std::unordered_map<std::string, std::size_t> places_;
  int total_ = 0;
};

/// "a slots = 2"
HostSlots read_line(std::string_view line) {
  std::string joined;  // without spaces around "="
  for (const std::string_view part : split(line, '=')) {
    joined += (joined.empty() ? "" : "=") + std::string(trimmed(part));
  }
  const std::vector<std::string_view> words = split_at_spaces(joined);
  HostSlots host = read_host(words.empty() ? line : words.front(), words.size() > 1);
  for (const std::string_view word : std::span(words).subspan(1)) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || !lists("slots cpu cpus count", word.substr(0, equals))) {
      reject(
          "{} after host {} is unknown; expected slots=NUMBER (users and ports belong into "
          "~/.ssh/config, and no host takes more than its slots without --oversubscribe)",
          in_quotes(word), in_quotes(host.name));
    }
    if (host.counted) reject("host {}: the slots are given twice", in_quotes(host.name));
    host.slots = read_slots(word.substr(equals + 1), host.name, "slots");
    host.counted = true;
  }
  return host;
}

std::string slots_of(std::span<const HostSlots> hosts) {
  constexpr std::size_t kMostNamed = 8;
  std::string text;
  for (const HostSlots& host : hosts.first(std::min(hosts.size(), kMostNamed))) {
    text += fmt::format("{}{} has {}", text.empty() ? "" : ", ", printable(host.name), host.slots);
  }
  if (hosts.size() > kMostNamed) {
    text += fmt::format(", and {} more hosts", hosts.size() - kMostNamed);
  }
  return text;
}

}  // namespace

tl::expected<std::vector<HostSlots>, std::string> parse_host_list(std::string_view list) {
  return expected_of([&] {
    HostSum sum;
    for (const std::string_view item : split(list, ',')) sum.add(read_host(trimmed(item), false));
    return sum.take();
  });
}

tl::expected<std::vector<HostSlots>, std::string> parse_hostfile(std::string_view text,
                                                                 std::string_view path) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  HostSum sum;
  int number = 0;
  try {
    for (const std::string_view whole : split(text, '\n')) {
      ++number;
      const std::string_view line = trimmed(whole.substr(0, whole.find('#')));
      if (!line.empty()) sum.add(read_line(line));
    }
  } catch (const Refused& refused) {
    return tl::unexpected(fmt::format("{}:{}: {}", printable(path), number, refused.why));
  }
  std::vector<HostSlots> hosts = sum.take();
  if (!hosts.empty()) return hosts;
  return tl::unexpected(printable(path) +
                        ": no host is named; expected a line such as \"host1 slots=4\" for each "
                        "host");
}

int total_slots(std::span<const HostSlots> hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostSlots& host) { return sum + host.slots; });
}

tl::expected<std::vector<HostRanks>, std::string> lay_out_ranks(std::span<const HostSlots> hosts,
                                                                int np, bool oversubscribe) {
  std::vector<int> ranks;
  int rest = np;
  int open = 0;  // hosts that take more than their slots
  const auto takes_more = [&](const HostSlots& host) { return oversubscribe || !host.counted; };
  for (const HostSlots& host : hosts) {
    ranks.push_back(std::min(host.slots, rest));
    rest -= ranks.back();
    if (takes_more(host)) ++open;
  }
  for (std::size_t i = 0; i < hosts.size() && rest > 0; ++i) {
    if (!takes_more(hosts[i])) continue;
    const int part = (rest + open - 1) / open;
    --open;
    ranks[i] += part;
    rest -= part;
  }
  if (rest > 0) {
    return tl::unexpected(fmt::format(
        "{} ranks are more than the hosts have slots: {}, together {}; take -np {}, give the hosts "
        "more slots (-H host:slots, slots= in a hostfile), or add --oversubscribe",
        np, slots_of(hosts), total_slots(hosts), total_slots(hosts)));
  }
  std::vector<HostRanks> result;
  int first = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (ranks[i] == 0) continue;
    result.push_back({hosts[i].name, first, ranks[i]});
    first += ranks[i];
  }
  return result;
}

namespace {

constexpr std::string_view kEndpointPort = "29400";  // torchrun's --rdzv-endpoint
constexpr std::string_view kUrls = "expected tcp://host:port or file:///folder";

RendezvousPlace checked(std::string_view host, std::string_view port, int least_port = 1) {
  check_host_name(host, host);
  const auto number = parse_integer(port, least_port, 65535);
  if (!number) reject("port {}: {}", in_quotes(port), number.error());
  return {.host = std::string(host), .port = static_cast<std::uint16_t>(*number), .folder = {}};
}

}  // namespace

std::optional<std::string_view> value_of(std::string_view name,
                                         std::span<const char* const> environment) {
  for (const char* const entry : environment) {
    const std::string_view text(entry == nullptr ? "" : entry);
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=')) {
      const std::string_view value = text.substr(name.size() + 1);
      if (!value.empty()) return value;
    }
  }
  return std::nullopt;
}

tl::expected<RendezvousPlace, std::string> parse_rendezvous(std::string_view url) {
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kFile = "file://";
  return expected_of([&]() -> RendezvousPlace {
    if (url.starts_with(kFile)) {
      const std::string_view folder = url.substr(kFile.size());
      if (!folder.starts_with('/') || folder.find('\0') != folder.npos) {
        reject("expected an absolute path after file://, as in file:///shared/job");
      }
      return {.host = {}, .port = 0, .folder = std::string(folder)};
    }
    if (!url.starts_with(kTcp)) reject("{}", kUrls);
    std::string_view address = url.substr(kTcp.size());
    if (address.ends_with('/')) address.remove_suffix(1);
    const auto [host, port] = split_address(address);
    if (!port) reject("the port is missing; {}", kUrls);
    return checked(host, *port);
  });
}

tl::expected<RendezvousPlace, std::string> parse_endpoint(std::string_view endpoint) {
  if (endpoint.starts_with("tcp://") || endpoint.starts_with("file://")) {
    return parse_rendezvous(endpoint);
  }
  return expected_of([&] {
    const auto [host, port] = split_address(endpoint);
    return checked(host, port.value_or("").empty() ? kEndpointPort : *port, 0);
  });
}

bool is_rendezvous_id(std::string_view id) noexcept {
  constexpr std::size_t kLongest = 64;
  const auto is_letter_or_digit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !id.empty() && id.size() <= kLongest && is_letter_or_digit(id.front()) &&
         std::ranges::all_of(
             id, [&](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; });
}

std::string to_url(const RendezvousPlace& rendezvous) {
  if (rendezvous.in_folder()) return "file://" + rendezvous.folder;
  const bool is_address = rendezvous.host.find(':') != std::string::npos;
  return fmt::format("tcp://{}{}{}:{}", is_address ? "[" : "", rendezvous.host,
                     is_address ? "]" : "", rendezvous.port);
}

tl::expected<std::optional<RendezvousPlace>, std::string> master_in_environment(
    std::span<const char* const> environment) {
  const auto host = value_of("MASTER_ADDR", environment);
  if (!host) return std::nullopt;
  const std::string port(
      value_of("MASTER_PORT", environment).value_or(std::to_string(kMasterPort)));
  try {
    return checked(*host, port);
  } catch (const Refused& refused) {
    return tl::unexpected("MASTER_ADDR, MASTER_PORT: " + refused.why);
  }
}

tl::expected<std::optional<NodeInEnvironment>, std::string> rendezvous_from_environment(
    std::span<const char* const> environment) {
  return expected_of([&]() -> std::optional<NodeInEnvironment> {
    const auto master = or_refuse(master_in_environment(environment));
    const char* count_name = "NNODES";
    const char* rank_name = "NODE_RANK";
    if (!value_of(count_name, environment) || !value_of(rank_name, environment)) {
      count_name = "WORLD_SIZE";
      rank_name = "RANK";
    }
    const auto count = value_of(count_name, environment);
    const auto rank = value_of(rank_name, environment);
    if (!master || !count || !rank) return std::nullopt;
    const auto nnodes = parse_integer(*count, 1, kMostRanks);
    if (!nnodes) reject("{}={}: {}", count_name, in_quotes(*count), nnodes.error());
    const auto node_rank = parse_integer(*rank, 0, *nnodes - 1);
    if (node_rank) return NodeInEnvironment{*master, *nnodes, *node_rank};
    reject("{}={}: {} (one below {})", rank_name, in_quotes(*rank), node_rank.error(), count_name);
  });
}

}  // namespace hora::launch
