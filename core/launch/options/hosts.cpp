#include "core/launch/options/hosts.h"

#include <arpa/inet.h>
#include <hora/printable.h>
#include <netinet/in.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/launch/command/command.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

constexpr std::size_t kLongestName = 253;  // RFC 1035, 2.3.4, without the last dot

bool is_ipv6(std::string_view text) {
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

tl::expected<int, std::string> parse_slots(std::string_view text, std::string_view host,
                                           std::string_view what) {
  const auto number = parse_integer(text, 1, kMostRanks);
  if (number) return *number;
  return Unexpected("host " + in_quotes(host) + ": " + in_quotes(text) + " is no number of " +
                    std::string(what) + ": " + number.error());
}

/// "a", "a:2", "[::1]" or "[::1]:2". With `address_alone`, "fe80::1" is an address, too, because
/// its slots follow elsewhere.
tl::expected<HostSlots, std::string> parse_host(std::string_view text, bool address_alone) {
  HostSlots host;
  host.counted = false;
  std::string_view slots;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == text.npos) {
      return Unexpected("host " + in_quotes(text) + ": the bracket is not closed; " +
                        "an IPv6 address is written as [fe80::1] or [fe80::1]:2");
    }
    host.name = text.substr(1, end - 1);
    if (!is_ipv6(host.name)) {
      return Unexpected("host " + in_quotes(text) + ": " + in_quotes(host.name) +
                        " is no IPv6 address");
    }
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && !rest.starts_with(':')) {
      return Unexpected("host " + in_quotes(text) +
                        ": expected \":\" and a number of slots after "
                        "the bracket");
    }
    host.counted = !rest.empty();
    slots = rest.substr(rest.empty() ? 0 : 1);
  } else if (std::ranges::count(text, ':') > 1) {
    if (!address_alone || !is_ipv6(text)) {
      return Unexpected("host " + in_quotes(text) +
                        ": an IPv6 address stands in brackets, as in [fe80::1]:2");
    }
    host.name = text;
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    host.name = text.substr(0, colon);
    host.counted = colon < text.size();
    slots = text.substr(std::min(colon + 1, text.size()));
  }
  if (const std::string wrong = wrong_with_host_name(host.name); !wrong.empty()) {
    return Unexpected("host " + in_quotes(text) + ": " + wrong);
  }
  if (host.counted) {
    const auto number = parse_slots(slots, text, "slots");
    if (!number) return Unexpected(number.error());
    host.slots = *number;
  }
  return host;
}

/// Hosts in the order in which they are first named, with the sums of their slots.
class HostSum {
 public:
  /// What is wrong with adding it; empty where nothing is.
  std::string add(HostSlots host) {
    if (host.slots > kMostRanks - total_) {
      return "with host " + in_quotes(host.name) + " there are more than " +
             std::to_string(kMostRanks) + " slots, which is the limit";
    }
    total_ += host.slots;
    const auto [place, is_new] = places_.try_emplace(host.name, hosts_.size());
    if (is_new) {
      hosts_.push_back(std::move(host));
      return {};
    }
    HostSlots& known = hosts_[place->second];
    known.slots += host.slots;
    known.counted = true;
    known.limit = std::max(std::min(known.limit, host.limit), known.slots);
    return {};
  }
  std::vector<HostSlots> take() { return std::move(hosts_); }
  bool empty() const { return hosts_.empty(); }

 private:
  std::vector<HostSlots> hosts_;
  std::unordered_map<std::string, std::size_t> places_;
  int total_ = 0;
};

/// "slots=2" or "max_slots=4" of a hostfile's line. What is wrong with it, or empty.
std::string apply_key(std::string_view word, HostSlots& host) {
  const std::size_t equals = word.find('=');
  std::string key(word.substr(0, equals));
  std::ranges::replace(key, '-', '_');
  const bool is_slots = key == "slots" || key == "cpu" || key == "cpus" || key == "count";
  const bool is_limit = key == "max_slots" || key == "slots_max";
  if (equals == word.npos || (!is_slots && !is_limit)) {
    return in_quotes(word) + " after host " + in_quotes(host.name) +
           " is unknown; expected slots=NUMBER or max_slots=NUMBER (users and ports belong into "
           "~/.ssh/config)";
  }
  const auto number = parse_slots(word.substr(equals + 1), host.name, key);
  if (!number) return number.error();
  if (is_limit) {
    host.limit = *number;
  } else if (host.counted) {
    return "host " + in_quotes(host.name) + ": the slots are given twice";
  } else {
    host.slots = *number;
    host.counted = true;
  }
  return {};
}

tl::expected<HostSlots, std::string> parse_line(std::string_view line) {
  const std::string joined = without_spaces_around(line, '=');
  const std::vector<std::string_view> words = split_at_spaces(joined);
  auto host = parse_host(words.front(), words.size() > 1);
  if (!host) return host;
  for (const std::string_view word : std::span(words).subspan(1)) {
    if (const std::string wrong = apply_key(word, *host); !wrong.empty()) return Unexpected(wrong);
  }
  if (host->limit < kMostRanks && !host->counted) {  // as Open MPI: max_slots alone is both
    host->slots = host->limit;
    host->counted = true;
  }
  if (host->limit < host->slots) {
    return Unexpected("host " + in_quotes(host->name) +
                      ": max_slots=" + std::to_string(host->limit) +
                      " is less than slots=" + std::to_string(host->slots));
  }
  return host;
}

std::string slots_of(std::span<const HostSlots> hosts) {
  constexpr std::size_t kMostNamed = 8;
  std::string text;
  for (const HostSlots& host : hosts.first(std::min(hosts.size(), kMostNamed))) {
    text +=
        (text.empty() ? "" : ", ") + printable(host.name) + " has " + std::to_string(host.slots);
    if (host.limit < kMostRanks) text += " (at most " + std::to_string(host.limit) + ")";
  }
  if (hosts.size() > kMostNamed) {
    text += ", and " + std::to_string(hosts.size() - kMostNamed) + " more hosts";
  }
  return text;
}

/// Adds `rest` ranks in even shares to the hosts that take more; returns what found no place.
int share(std::span<const HostSlots> hosts, bool oversubscribe, int rest, std::vector<int>& ranks) {
  for (bool placed = true; rest > 0 && placed;) {
    placed = false;
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const bool takes = oversubscribe || !hosts[i].counted;
      if (takes && ranks[i] < hosts[i].limit) open.push_back(i);
    }
    const int hosts_left = static_cast<int>(open.size());
    const int each = hosts_left == 0 ? 0 : (rest + hosts_left - 1) / hosts_left;
    int larger = hosts_left == 0 ? 0 : (rest - 1) % hosts_left + 1;  // shares of `each`
    for (const std::size_t i : open) {
      const int part = std::min(larger-- > 0 ? each : each - 1, hosts[i].limit - ranks[i]);
      ranks[i] += part;
      rest -= part;
      placed = placed || part > 0;
    }
  }
  return rest;
}

}  // namespace

std::string wrong_with_host_name(std::string_view name) {
  if (name.empty()) return "the name is empty";
  if (name.size() > kLongestName) {
    return "the name is longer than " + std::to_string(kLongestName) + " characters";
  }
  if (name.starts_with('-')) return "a name does not begin with \"-\"";
  if (!is_host_name(name)) {
    return "a name has letters, digits, \".\", \"_\", \":\" and \"-\" only";
  }
  return {};
}

tl::expected<std::vector<HostSlots>, std::string> parse_host_list(std::string_view list) {
  HostSum sum;
  for (const std::string_view item : split(list, ',')) {
    auto host = parse_host(trimmed(item), false);
    if (!host) return Unexpected(host.error());
    if (const std::string wrong = sum.add(std::move(*host)); !wrong.empty()) {
      return Unexpected(wrong);
    }
  }
  return sum.take();
}

tl::expected<std::vector<HostSlots>, std::string> parse_hostfile(std::string_view text,
                                                                 std::string_view path) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  HostSum sum;
  int number = 0;
  for (const std::string_view whole : split(text, '\n')) {
    ++number;
    const std::string_view line = trimmed(whole.substr(0, whole.find('#')));
    if (line.empty()) continue;
    auto host = parse_line(line);
    const std::string wrong = host ? sum.add(std::move(*host)) : host.error();
    if (!wrong.empty()) {
      return Unexpected(printable(path) + ":" + std::to_string(number) + ": " + wrong);
    }
  }
  if (sum.empty()) {
    return Unexpected(printable(path) +
                      ": no host is named; expected a line such as \"host1 "
                      "slots=4\" for each host");
  }
  return sum.take();
}

int total_slots(std::span<const HostSlots> hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostSlots& host) { return sum + host.slots; });
}

tl::expected<std::vector<HostRanks>, std::string> lay_out_ranks(std::span<const HostSlots> hosts,
                                                                int np, bool oversubscribe) {
  std::vector<int> ranks;
  int rest = np;
  for (const HostSlots& host : hosts) {
    ranks.push_back(std::min(host.slots, rest));
    rest -= ranks.back();
  }
  if (share(hosts, oversubscribe, rest, ranks) > 0) {
    return Unexpected(std::to_string(np) + " ranks are more than the hosts have slots: " +
                      slots_of(hosts) + ", together " + std::to_string(total_slots(hosts)) +
                      "; take -np " + std::to_string(total_slots(hosts)) +
                      ", give the hosts more slots (-H host:slots, slots= in a hostfile), or add "
                      "--oversubscribe");
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

}  // namespace hora::launch
