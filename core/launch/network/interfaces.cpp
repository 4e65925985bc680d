#include "core/launch/network/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>

#include "core/launch/control/system.h"

namespace hora::launch {
namespace {

bool is_ipv4_in_ipv6(const in6_addr& address) {
  constexpr std::array<std::uint8_t, 12> kPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(&address, kPrefix.data(), kPrefix.size()) == 0;
}

IpAddress from(const in_addr& address) {
  IpAddress result{.family = Family::ipv4};
  std::memcpy(result.bytes.data(), &address, sizeof address);
  return result;
}

IpAddress from(const in6_addr& address) {
  IpAddress result{.family = Family::ipv6};
  if (is_ipv4_in_ipv6(address)) {
    result.family = Family::ipv4;
    std::memcpy(result.bytes.data(), reinterpret_cast<const std::uint8_t*>(&address) + 12, 4);
  } else {
    std::memcpy(result.bytes.data(), &address, sizeof address);
  }
  return result;
}

}  // namespace

bool IpAddress::is_loopback() const {
  if (family == Family::ipv4) return bytes[0] == 127;
  return bytes[15] == 1 &&
         std::all_of(bytes.begin(), bytes.end() - 1, [](int b) { return b == 0; });
}

bool IpAddress::is_link_local() const {
  if (family == Family::ipv4) return bytes[0] == 169 && bytes[1] == 254;
  return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

bool IpAddress::is_unspecified() const {
  return std::ranges::all_of(bytes, [](int byte) { return byte == 0; });
}

std::string to_string(const IpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(address.system_family(), address.bytes.data(), text.data(), text.size());
  return text.data();
}

std::optional<IpAddress> parse_address(const std::string& text) {
  if (text.find('\0') != std::string::npos) return {};
  in_addr ipv4{};
  if (::inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return from(ipv4);
  in6_addr ipv6{};
  if (::inet_pton(AF_INET6, text.c_str(), &ipv6) == 1) return from(ipv6);
  return {};
}

std::string to_string(const Endpoint& endpoint) {
  const std::string address = to_string(endpoint.address);
  if (endpoint.address.family == Family::ipv4) return fmt::format("{}:{}", address, endpoint.port);
  return fmt::format("[{}]:{}", address, endpoint.port);
}

bool Subnet::contains(const IpAddress& address) const {
  return address.family == base.family && subnet_of(address, prefix).base == base;
}

Subnet subnet_of(const IpAddress& address, int prefix) {
  Subnet subnet{address, std::clamp(prefix, 0, address.bits())};
  for (int bit = subnet.prefix; bit < address.bits(); ++bit) {
    subnet.base.bytes[static_cast<std::size_t>(bit / 8)] &=
        static_cast<std::uint8_t>(~(0x80u >> (bit % 8)));
  }
  return subnet;
}

std::string to_string(const Subnet& subnet) {
  return fmt::format("{}/{}", to_string(subnet.base), subnet.prefix);
}

std::optional<Subnet> parse_subnet(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return {};
  const auto address = parse_address(text.substr(0, slash));
  const std::string_view bits = std::string_view(text).substr(slash + 1);
  int prefix = -1;
  const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), prefix);
  if (!address || error != std::errc() || end != bits.data() + bits.size() || prefix < 0 ||
      prefix > address->bits()) {
    return {};
  }
  return subnet_of(*address, prefix);
}

SocketAddress::SocketAddress(const IpAddress& address, std::uint16_t port) {
  if (address.family == Family::ipv4) {
    sockaddr_in ipv4{};
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    std::memcpy(&ipv4.sin_addr, address.bytes.data(), sizeof ipv4.sin_addr);
    std::memcpy(&storage, &ipv4, sizeof ipv4);
    length = sizeof ipv4;
  } else {
    sockaddr_in6 ipv6{};
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    std::memcpy(&ipv6.sin6_addr, address.bytes.data(), sizeof ipv6.sin6_addr);
    std::memcpy(&storage, &ipv6, sizeof ipv6);
    length = sizeof ipv6;
  }
}

std::optional<IpAddress> SocketAddress::address() const {
  return address_of(get());
}

std::uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return 0;
}

std::optional<IpAddress> address_of(const sockaddr* address) {
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    return from(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  }
  if (address->sa_family == AF_INET6) {
    return from(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return {};
}

namespace {

int prefix_of(const IpAddress& mask) {
  int bits = 0;
  for (const std::uint8_t byte : mask.bytes) bits += std::popcount(byte);
  return bits;
}

/// A number in a file of the kernel, 0 where there is none: reading the speed of a bridge or of an
/// interface that is down fails, and of an unknown speed it gives -1.
int number_in(const std::string& path) {
  std::ifstream file(path);
  long number = 0;
  if (!(file >> number) || number < 0 || number > 100'000'000) return 0;
  return static_cast<int>(number);
}

/// In bytes; 0 where the kernel does not say.
int mtu_of(const std::string& name) {
  const UniqueFd any_socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (!any_socket || ::ioctl(any_socket.get(), SIOCGIFMTU, &request) != 0) return 0;
  return request.ifr_mtu;
}

Interface describe_interface(const std::string& name, unsigned flags) {
  Interface interface;
  interface.name = name;
  interface.up = (flags & IFF_UP) != 0;
  interface.running = (flags & IFF_RUNNING) != 0;
  interface.loopback = (flags & IFF_LOOPBACK) != 0;
  interface.mtu = mtu_of(name);
  // /sys may be that of another network namespace, where this name is another interface.
  const std::string folder = "/sys/class/net/" + name + "/";
  if (number_in(folder + "ifindex") == static_cast<int>(::if_nametoindex(name.c_str()))) {
    interface.hardware = ::access((folder + "device").c_str(), F_OK) == 0;
    interface.speed = number_in(folder + "speed");
  }
  return interface;
}

std::string state_of(const Interface& interface) {
  std::vector<std::string> parts;
  for (const InterfaceAddress& at : interface.addresses) {
    if (at.address.family == Family::ipv6 && at.address.is_link_local()) continue;
    parts.push_back(fmt::format("{}/{}", to_string(at.address), at.prefix));
  }
  if (parts.empty()) parts.push_back("no address");
  if (!interface.up || !interface.running) parts.push_back("down");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::vector<Interface> this_host_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error(ErrorCode::transport, "this host's network interfaces cannot be listed: " +
                                          std::string(std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const std::string name = entry->ifa_name;
    auto at = std::ranges::find(interfaces, name, &Interface::name);
    if (at == interfaces.end()) {
      interfaces.push_back(describe_interface(name, entry->ifa_flags));
      at = std::prev(interfaces.end());
    }
    const auto address = address_of(entry->ifa_addr);
    const auto mask = address_of(entry->ifa_netmask);
    if (!address) continue;
    at->addresses.push_back({*address, mask ? prefix_of(*mask) : address->bits()});
  }
  return interfaces;
}

std::string this_network_stack() {
  std::string start;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  struct stat status {};
  if (::stat("/proc/thread-self/ns/net", &status) != 0) status = {};
  return fmt::format("{}/{}/{}", start, status.st_dev, status.st_ino);
}

std::string describe(std::span<const Interface> interfaces) {
  std::vector<std::string> texts;
  for (const Interface& interface : interfaces) {
    texts.push_back(fmt::format("{} ({})", interface.name, state_of(interface)));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

std::vector<Candidate> candidates_of(const HostNetwork& host) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < host.interfaces.size(); ++i) {
    const Interface& interface = host.interfaces[i];
    if (!interface.usable() || interface.loopback) continue;
    for (const InterfaceAddress& at : interface.addresses) {
      const bool of_one_link = at.address.family == Family::ipv6 && at.address.is_link_local();
      if (of_one_link || at.address.is_loopback() || at.address.is_unspecified()) continue;
      candidates.push_back({i, at.address, at.prefix});
    }
  }
  return candidates;
}

std::vector<std::size_t> probe_partners(std::size_t host, std::size_t hosts) {
  constexpr std::size_t kFewHosts = 16;
  std::set<std::size_t> partners;
  if (hosts <= kFewHosts) {
    for (std::size_t peer = 0; peer < hosts; ++peer) partners.insert(peer);
  } else {
    for (std::size_t step = 1; step < hosts; step *= 2) {
      partners.insert((host + step) % hosts);
      partners.insert((host + hosts - step) % hosts);
    }
  }
  partners.erase(host);
  return {partners.begin(), partners.end()};
}

namespace {

/// One candidate for each host, by its index.
using Assignment = std::vector<std::size_t>;

/// Whose interfaces a warning lists.
constexpr std::size_t kDescribedHosts = 4;

/// Speeds that are assumed where the kernel does not say: of a device a usual speed, of a tunnel a
/// low one.
constexpr int kUnknownHardwareSpeed = 1000, kUnknownSoftwareSpeed = 10;

int speed_of(const Interface& interface) {
  if (interface.speed > 0) return interface.speed;
  return interface.hardware ? kUnknownHardwareSpeed : kUnknownSoftwareSpeed;
}

class Chooser {
 public:
  Chooser(std::span<const HostNetwork> hosts, const Reachability& reachability)
      : hosts_(hosts), reachability_(reachability) {
    for (const HostNetwork& host : hosts) candidates_.push_back(candidates_of(host));
  }

  /// The best assignment of which all reach each other, if there is any.
  std::optional<Assignment> best() const {
    std::optional<Assignment> best;
    for (std::size_t first = 0; first < candidates_[0].size(); ++first) {
      auto assignment = extend(first);
      if (assignment && (!best || score(*assignment) > score(*best))) best = assignment;
    }
    return best;
  }

  std::vector<std::vector<Candidate>> used_by(const Assignment& assignment) const {
    std::vector<std::vector<Candidate>> used;
    for (std::size_t host = 0; host < assignment.size(); ++host) {
      used.push_back({candidates_[host][assignment[host]]});
    }
    return used;
  }

  /// All but those addresses that several hosts have; of these only those in subnets that all hosts
  /// share, if there are such. A host without any keeps all that it has.
  std::vector<std::vector<Candidate>> fallback() const {
    std::map<IpAddress, std::size_t> owners;
    for (std::size_t host = 0; host < candidates_.size(); ++host) {
      for (const Candidate& candidate : candidates_[host]) {
        const auto [owner, is_new] = owners.try_emplace(candidate.address, host);
        if (!is_new && hosts_[owner->second].stack != hosts_[host].stack) {
          owner->second = kSeveral;
        }
      }
    }
    const auto has_one_owner = [&](const Candidate& candidate) {
      return owners.at(candidate.address) != kSeveral;
    };
    auto used = filtered(candidates_, has_one_owner);
    const std::vector<std::vector<Candidate>> own = used;
    return filtered(used, [&](const Candidate& candidate) {
      const Subnet subnet = subnet_of(candidate.address, candidate.prefix);
      return std::ranges::all_of(own, [&](const std::vector<Candidate>& others) {
        return std::ranges::any_of(
            others, [&](const Candidate& other) { return subnet.contains(other.address); });
      });
    });
  }

  /// "a and c, b and c": pairs of which no addresses reach each other; of many the first ones.
  std::string unreached() const {
    std::vector<std::string> pairs;
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      for (const std::size_t peer : probe_partners(host, hosts_.size())) {
        if (peer < host || reach(host, peer)) continue;
        pairs.push_back(hosts_[host].host + " and " + hosts_[peer].host);
      }
    }
    return pairs_text(std::move(pairs), kShownPairs);
  }

 private:
  static constexpr std::size_t kSeveral = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kShownPairs = 8;

  template <class Keep>
  static std::vector<std::vector<Candidate>> filtered(
      const std::vector<std::vector<Candidate>>& candidates, const Keep& keep) {
    std::vector<std::vector<Candidate>> result;
    for (const std::vector<Candidate>& of_host : candidates) {
      auto& kept = result.emplace_back();
      std::ranges::copy_if(of_host, std::back_inserter(kept), keep);
      if (kept.empty()) kept = of_host;
    }
    return result;
  }

  bool reach(std::size_t host, std::size_t peer) const {
    for (std::size_t a = 0; a < candidates_[host].size(); ++a) {
      for (std::size_t b = 0; b < candidates_[peer].size(); ++b) {
        if (reachability_.mutual(host, a, peer, b)) return true;
      }
    }
    return false;
  }

  const Interface& interface_of(std::size_t host, std::size_t candidate) const {
    return hosts_[host].interfaces[candidates_[host][candidate].interface];
  }

  bool in_subnet_of(std::size_t first, std::size_t host, std::size_t candidate) const {
    const Candidate& of_first = candidates_[0][first];
    return subnet_of(of_first.address, of_first.prefix)
        .contains(candidates_[host][candidate].address);
  }

  /// From a candidate of the first host: for each further host the best that all of its partners
  /// before it reach.
  std::optional<Assignment> extend(std::size_t first) const {
    Assignment assignment{first};
    for (std::size_t host = 1; host < candidates_.size(); ++host) {
      std::optional<std::size_t> best;
      const auto rank = [&](std::size_t candidate) {
        const Interface& interface = interface_of(host, candidate);
        return std::tuple(in_subnet_of(first, host, candidate), speed_of(interface),
                          interface.hardware, interface.mtu);
      };
      for (std::size_t i = 0; i < candidates_[host].size(); ++i) {
        if (joins(assignment, host, i) && (!best || rank(i) > rank(*best))) best = i;
      }
      if (!best) return {};
      assignment.push_back(*best);
    }
    return assignment;
  }

  bool joins(const Assignment& assignment, std::size_t host, std::size_t candidate) const {
    return std::ranges::all_of(probe_partners(host, hosts_.size()), [&](std::size_t peer) {
      return peer >= assignment.size() ||
             reachability_.mutual(host, candidate, peer, assignment[peer]);
    });
  }

  /// Greater is better; the slowest host counts.
  std::tuple<int, bool, bool, int, bool> score(const Assignment& assignment) const {
    std::tuple<int, bool, bool, int, bool> worst{std::numeric_limits<int>::max(), true, true,
                                                 std::numeric_limits<int>::max(), true};
    auto& [speed, hardware, one_subnet, mtu, ipv4] = worst;
    for (std::size_t host = 0; host < assignment.size(); ++host) {
      const Interface& interface = interface_of(host, assignment[host]);
      speed = std::min(speed, speed_of(interface));
      hardware = hardware && interface.hardware;
      one_subnet = one_subnet && in_subnet_of(assignment[0], host, assignment[host]);
      mtu = std::min(mtu, interface.mtu);
      ipv4 = ipv4 && candidates_[host][assignment[host]].address.family == Family::ipv4;
    }
    return worst;
  }

  std::span<const HostNetwork> hosts_;
  const Reachability& reachability_;
  std::vector<std::vector<Candidate>> candidates_;
};

NetworkChoice choose_loopback(std::span<const HostNetwork> hosts) {
  NetworkChoice choice;
  for (const HostNetwork& host : hosts) {
    const auto at = std::ranges::find_if(host.interfaces, &Interface::loopback);
    choice.interfaces.push_back({at == host.interfaces.end() ? "lo" : at->name});
    choice.addresses.push_back(*parse_address("127.0.0.1"));
  }
  choice.subnets = {"127.0.0.0/8"};
  choice.line = "network: loopback (all hosts are one machine)";
  return choice;
}

void add_once(std::vector<std::string>& texts, const std::string& text) {
  if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
}

/// Whether the subnet has an address of an interface that its host does not use.
bool has_unused(const Subnet& subnet, std::span<const HostNetwork> hosts,
                std::span<const std::vector<Candidate>> used) {
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (std::size_t i = 0; i < hosts[host].interfaces.size(); ++i) {
      if (std::ranges::find(used[host], i, &Candidate::interface) != used[host].end()) continue;
      for (const InterfaceAddress& at : hosts[host].interfaces[i].addresses) {
        if (subnet.contains(at.address)) return true;
      }
    }
  }
  return false;
}

}  // namespace

bool are_one_machine(std::span<const HostNetwork> hosts) {
  return std::ranges::all_of(
      hosts, [&](const HostNetwork& host) { return host.stack == hosts.front().stack; });
}

std::string pairs_text(std::vector<std::string> pairs, std::size_t shown) {
  const std::size_t count = pairs.size();
  if (count > shown) {
    pairs.resize(shown);
    pairs.push_back(fmt::format("... ({} pairs)", count));
  }
  return fmt::format("{}", fmt::join(pairs, ", "));
}

NetworkChoice make_choice(std::span<const HostNetwork> hosts,
                          std::span<const std::vector<Candidate>> used) {
  NetworkChoice choice;
  std::vector<std::string> by_host;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    auto& names = choice.interfaces.emplace_back();
    for (const Candidate& candidate : used[host]) {
      add_once(names, hosts[host].interfaces[candidate.interface].name);
      const Subnet subnet = subnet_of(candidate.address, candidate.prefix);
      // A subnet of one address has no other interface's.
      add_once(choice.subnets,
               to_string(has_unused(subnet, hosts, used)
                             ? subnet_of(candidate.address, candidate.address.bits())
                             : subnet));
    }
    choice.addresses.push_back(used[host].front().address);
    by_host.push_back(fmt::format("{}: {}", hosts[host].host, fmt::join(names, "+")));
  }
  choice.line =
      fmt::format("network: {} ({})", fmt::join(choice.subnets, ","), fmt::join(by_host, ", "));
  return choice;
}

NetworkChoice choose_network(std::span<const HostNetwork> hosts, const Reachability& reachability) {
  if (are_one_machine(hosts)) return choose_loopback(hosts);
  const Chooser chooser(hosts, reachability);
  if (const auto best = chooser.best()) return make_choice(hosts, chooser.used_by(*best));

  const std::vector<std::vector<Candidate>> used = chooser.fallback();
  NetworkChoice choice;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (!used[host].empty()) continue;
    choice.interfaces.resize(hosts.size());
    choice.line = "network: left to MPI";
    choice.warning =
        fmt::format("host {} has no network interface that is up and has an address; it has {}",
                    hosts[host].host, describe(hosts[host].interfaces));
    return choice;
  }
  choice = make_choice(hosts, used);
  choice.warning = (reachability.empty()
                        ? "no host's datagrams reach another (UDP may be blocked), so interfaces "
                          "are used untried"
                        : "no addresses of these hosts reach each other: " + chooser.unreached()) +
                   "; is there a firewall between them? --network-interfaces names the right ones";
  for (std::size_t host = 0; host < std::min(hosts.size(), kDescribedHosts); ++host) {
    *choice.warning +=
        fmt::format("; host {} has {}", hosts[host].host, describe(hosts[host].interfaces));
  }
  return choice;
}

namespace {

/// One of the things named: a subnet, or the name of an interface.
struct Item {
  std::string text;
  std::optional<Subnet> subnet;

  bool names(const Interface& interface) const {
    if (!subnet) return interface.name == text;
    return std::ranges::any_of(interface.addresses, [&](const InterfaceAddress& at) {
      return subnet->contains(at.address);
    });
  }
  bool names(const Interface& interface, const IpAddress& address) const {
    return subnet ? subnet->contains(address) : interface.name == text;
  }
};

/// "--network-interfaces eth0,ens3".
std::string flag_with(std::span<const std::string> named) {
  return "--network-interfaces " + printable(fmt::format("{}", fmt::join(named, ",")));
}

tl::expected<std::vector<Item>, std::string> parse_items(std::span<const std::string> named) {
  std::vector<Item> items;
  for (const std::string& text : named) {
    Item item{text, parse_subnet(text)};
    const bool is_name = !text.empty() && text.find_first_of("/,") == std::string::npos;
    if (!item.subnet && !is_name) {
      return tl::unexpected(
          fmt::format("{}: {} is neither an interface's name nor a subnet such as 10.77.0.0/24",
                      flag_with(named), in_quotes(text)));
    }
    items.push_back(std::move(item));
  }
  return items;
}

/// The addresses of `host` that the items name, IPv4 first: that is what peers use first.
std::vector<Candidate> named_of(const HostNetwork& host, std::span<const Item> items) {
  std::vector<Candidate> named;
  for (std::size_t i = 0; i < host.interfaces.size(); ++i) {
    const Interface& interface = host.interfaces[i];
    if (!interface.usable()) continue;
    for (const InterfaceAddress& at : interface.addresses) {
      if (at.address.family == Family::ipv6 && at.address.is_link_local()) continue;
      const bool is_named = std::ranges::any_of(
          items, [&](const Item& item) { return item.names(interface, at.address); });
      if (is_named) named.push_back({i, at.address, at.prefix});
    }
  }
  std::ranges::stable_sort(named, {}, [](const Candidate& at) { return at.address.family; });
  return named;
}

std::string refusal(const HostNetwork& host, std::span<const Item> items,
                    std::span<const std::string> named) {
  std::string why = "has no such interface";
  for (const Item& item : items) {
    const auto at = std::ranges::find_if(
        host.interfaces, [&](const Interface& interface) { return item.names(interface); });
    if (at == host.interfaces.end()) continue;
    why = fmt::format("has {}, but it {}", at->name,
                      at->up && at->running ? "has no address" : "is down");
  }
  return fmt::format(
      "{}: host {} {}; its interfaces are {}; name one for every host, separated by commas",
      flag_with(named), host.host, why, describe(host.interfaces));
}

}  // namespace

tl::expected<NetworkChoice, std::string> choose_named(std::span<const HostNetwork> hosts,
                                                      std::span<const std::string> named) {
  const auto items = parse_items(named);
  if (!items) return tl::unexpected(items.error());
  std::vector<std::vector<Candidate>> used;
  for (const HostNetwork& host : hosts) {
    used.push_back(named_of(host, *items));
    if (used.back().empty()) return tl::unexpected(refusal(host, *items, named));
    const bool only_loopback = std::ranges::all_of(used.back(), [&](const Candidate& candidate) {
      return host.interfaces[candidate.interface].loopback;
    });
    if (only_loopback && host.stack != hosts.front().stack) {
      return tl::unexpected(fmt::format(
          "{}: host {} is another machine than {}, which loopback does not reach; its interfaces "
          "are {}",
          flag_with(named), host.host, hosts.front().host, describe(host.interfaces)));
    }
  }
  for (const Item& item : *items) {
    const bool somewhere = std::ranges::any_of(hosts, [&](const HostNetwork& host) {
      return std::ranges::any_of(host.interfaces,
                                 [&](const Interface& interface) { return item.names(interface); });
    });
    if (!somewhere) {
      return tl::unexpected(fmt::format("{}: no host has {}; host {} has {}", flag_with(named),
                                        in_quotes(item.text), hosts.front().host,
                                        describe(hosts.front().interfaces)));
    }
  }
  return make_choice(hosts, used);
}

}  // namespace hora::launch
