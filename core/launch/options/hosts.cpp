#include "core/launch/options/hosts.h"

#include <hora/printable.h>
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
      "host {}: a name or IPv4 address has up to 253 letters, digits, \".\", \"_\" and \"-\", the "
      "first no \"-\"",
      in_quotes(text));
}

int read_slots(std::string_view text, std::string_view host) {
  const auto number = parse_integer(text, 1, kMostRanks);
  if (number) return *number;
  reject("host {}: {} is no number of slots: {}", in_quotes(host), in_quotes(text), number.error());
}

/// "a" or "a:2".
HostSlots read_host(std::string_view text) {
  const std::size_t colon = text.find(':');
  HostSlots host{.name = std::string(text.substr(0, colon)), .counted = colon != text.npos};
  check_host_name(host.name, text);
  if (host.counted) host.slots = read_slots(text.substr(colon + 1), text);
  return host;
}

/// Hosts in the order in which they are first named, with the sums of their slots.
std::vector<HostSlots> summed(std::vector<HostSlots> named) {
  std::vector<HostSlots> hosts;
  std::unordered_map<std::string, std::size_t> places;
  int total = 0;
  for (HostSlots& host : named) {
    if (host.slots > kMostRanks - total) {
      reject("with host {} there are more than {} slots, which is the limit", in_quotes(host.name),
             kMostRanks);
    }
    total += host.slots;
    const auto [place, is_new] = places.try_emplace(host.name, hosts.size());
    if (!is_new) {
      hosts[place->second].slots += host.slots;
      hosts[place->second].counted = true;
    } else {
      hosts.push_back(std::move(host));
    }
  }
  return hosts;
}

/// "a slots = 2"
HostSlots read_line(std::string_view line) {
  std::string joined;  // without spaces around "="
  for (const std::string_view part : split(line, '=')) {
    joined += (joined.empty() ? "" : "=") + std::string(trimmed(part));
  }
  const std::vector<std::string_view> words = split_at_spaces(joined);
  HostSlots host = read_host(words.empty() ? line : words.front());
  for (const std::string_view word : std::span(words).subspan(1)) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || !lists("slots cpu cpus count", word.substr(0, equals))) {
      reject(
          "{} after host {} is unknown; expected slots=NUMBER (users and ports belong into "
          "~/.ssh/config, and no host takes more than its slots without --oversubscribe)",
          in_quotes(word), in_quotes(host.name));
    }
    if (host.counted) reject("host {}: the slots are given twice", in_quotes(host.name));
    host.slots = read_slots(word.substr(equals + 1), host.name);
    host.counted = true;
  }
  return host;
}

std::string slots_of(std::span<const HostSlots> hosts) {
  std::vector<std::string> texts;
  for (const HostSlots& host : hosts) {
    texts.push_back(fmt::format("{} has {}", printable(host.name), host.slots));
  }
  return first_of(std::move(texts), 8);
}

}  // namespace

tl::expected<std::vector<HostSlots>, std::string> parse_host_list(std::string_view list) {
  return expected_of([&] {
    std::vector<HostSlots> hosts;
    for (const std::string_view item : split(list, ',')) {
      hosts.push_back(read_host(trimmed(item)));
    }
    return summed(std::move(hosts));
  });
}

tl::expected<std::vector<HostSlots>, std::string> parse_hostfile(std::string_view text,
                                                                 std::string_view path) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  std::vector<HostSlots> hosts;
  int number = 0;
  try {
    for (const std::string_view whole : split(text, '\n')) {
      ++number;
      const std::string_view line = trimmed(whole.substr(0, whole.find('#')));
      if (!line.empty()) hosts.push_back(read_line(line));
    }
    if (!hosts.empty()) return summed(std::move(hosts));
  } catch (const Refused& refused) {
    return tl::unexpected(fmt::format("{}:{}: {}", printable(path), number, refused.why));
  }
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

tl::expected<RendezvousPlace, std::string> parse_rendezvous(std::string_view url) {
  constexpr std::string_view kTcp = "tcp://", kFile = "file://";
  constexpr std::uint16_t kPort = 29400;  // torchrun's --rdzv-endpoint
  return expected_of([&]() -> RendezvousPlace {
    if (url.starts_with(kFile)) {
      const std::string_view folder = url.substr(kFile.size());
      if (!folder.starts_with('/') || folder.find('\0') != folder.npos) {
        reject("expected an absolute path after file://, as in file:///shared/job");
      }
      return {.host = {}, .port = 0, .folder = std::string(folder)};
    }
    std::string_view address = url.substr(url.starts_with(kTcp) ? kTcp.size() : 0);
    if (address.ends_with('/')) address.remove_suffix(1);
    const std::size_t colon = address.find(':');
    RendezvousPlace place{
        .host = std::string(address.substr(0, colon)), .port = kPort, .folder = {}};
    check_host_name(place.host, place.host);
    if (colon == address.npos) return place;
    const std::string_view text = address.substr(colon + 1);
    const auto port = parse_integer(text, 0, 65535);
    if (!port) {
      reject("port {}: {}, in tcp://host:port or file:///folder", in_quotes(text), port.error());
    }
    place.port = static_cast<std::uint16_t>(*port);
    return place;
  });
}

std::string to_url(const RendezvousPlace& rendezvous) {
  if (rendezvous.in_folder()) return "file://" + rendezvous.folder;
  return fmt::format("tcp://{}:{}", rendezvous.host, rendezvous.port);
}

}  // namespace hora::launch
