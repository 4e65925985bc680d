#include "core/launch/network/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <tuple>

#include "core/launch/text.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

int prefix_of(const sockaddr* mask) {
  return std::popcount(address_of(mask).value_or(IpAddress{~0U}).value);
}

/// A number in a file of the kernel, 0 where there is none: reading the speed of a bridge or of an
/// interface that is down fails, and of an unknown speed it gives -1.
int number_in_file(const std::string& path) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? std::max(number, 0) : 0;
}

/// One address for each host, by its index.
using Assignment = std::vector<std::size_t>;
/// By host: the addresses that it uses.
using Used = std::vector<std::vector<HostAddress>>;

constexpr std::size_t kDescribedHosts = 4;  ///< whose interfaces a warning lists
constexpr std::size_t kShownPairs = 8;

/// Where the kernel does not say: of a device a usual speed, of a tunnel a low one.
int speed_of(const HostAddress& address) {
  if (address.speed > 0) return address.speed;
  return address.hardware ? 1000 : 10;
}

class Chooser {
 public:
  Chooser(std::span<const HostNetwork> hosts, const Reachability& reachability)
      : hosts_(hosts), reachability_(reachability) {}

  /// The best assignment of which all reach each other, if there is any.
  std::optional<Used> best() const {
    std::optional<Assignment> best;
    for (std::size_t first = 0; first < hosts_[0].addresses.size(); ++first) {
      if (!hosts_[0].addresses[first].is_candidate()) continue;
      auto assignment = extend(first);
      if (assignment && (!best || score(*assignment) > score(*best))) best = assignment;
    }
    if (!best) return {};
    Used used;
    for (std::size_t host = 0; host < best->size(); ++host) used.push_back({at(host, *best)});
    return used;
  }

  /// All but those addresses that several machines have; a host without any keeps all that it has.
  Used own_addresses() const {
    std::map<IpAddress, std::set<std::string>> owners;
    Used own(hosts_.size());
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      std::ranges::copy_if(hosts_[host].addresses, std::back_inserter(own[host]),
                           &HostAddress::is_candidate);
      for (const HostAddress& each : own[host]) owners[each.ip()].insert(hosts_[host].stack);
    }
    for (auto& of_host : own) {
      auto alone = of_host;
      std::erase_if(alone, [&](const auto& each) { return owners.at(each.ip()).size() > 1; });
      if (!alone.empty()) of_host = std::move(alone);
    }
    return own;
  }

  /// "a and c, b and c": pairs of which no addresses reach each other; of many the first ones.
  std::string unreached() const {
    std::set<std::pair<std::size_t, std::size_t>> reached;
    for (const auto& [host, own, peer, other] : reachability_) {
      if (reachability_.contains({peer, other, host, own})) reached.emplace(host, peer);
    }
    std::vector<std::string> pairs;
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      for (const std::size_t peer : probe_partners(host, hosts_.size())) {
        if (peer < host || reached.contains({host, peer})) continue;
        pairs.push_back(hosts_[host].host + " and " + hosts_[peer].host);
      }
    }
    return first_of(std::move(pairs), kShownPairs);
  }

 private:
  const HostAddress& at(std::size_t host, const Assignment& assignment) const {
    return hosts_[host].addresses[assignment[host]];
  }

  /// Greater is better: speed, hardware, of the first host's subnet, MTU.
  using Quality = std::tuple<int, bool, bool, int>;
  static Quality quality(const HostAddress& address, const HostAddress& first) {
    const Subnet subnet = subnet_of(first.ip(), first.prefix);
    return Quality(speed_of(address), address.hardware, subnet.contains(address.ip()), address.mtu);
  }

  /// From an address of the first host: for each further host the best that all of its partners
  /// before it reach, of the same subnet where there is one.
  std::optional<Assignment> extend(std::size_t first) const {
    Assignment assignment{first};
    for (std::size_t host = 1; host < hosts_.size(); ++host) {
      const auto& addresses = hosts_[host].addresses;
      std::optional<std::size_t> best;
      const auto rank = [&](std::size_t i) {
        const Quality all = quality(addresses[i], at(0, assignment));
        return std::pair(std::get<2>(all), all);
      };
      for (std::size_t i = 0; i < addresses.size(); ++i) {
        if (joins(assignment, host, i) && (!best || rank(i) > rank(*best))) best = i;
      }
      if (!best) return {};
      assignment.push_back(*best);
    }
    return assignment;
  }

  bool joins(const Assignment& assignment, std::size_t host, std::size_t address) const {
    return std::ranges::all_of(probe_partners(host, hosts_.size()), [&](std::size_t peer) {
      return peer >= assignment.size() ||
             (reachability_.contains({host, address, peer, assignment[peer]}) &&
              reachability_.contains({peer, assignment[peer], host, address}));
    });
  }

  /// That of the worst host.
  Quality score(const Assignment& assignment) const {
    Quality worst = quality(at(0, assignment), at(0, assignment));
    for (std::size_t host = 1; host < assignment.size(); ++host) {
      worst = std::min(worst, quality(at(host, assignment), at(0, assignment)));
    }
    return worst;
  }

  std::span<const HostNetwork> hosts_;
  const Reachability& reachability_;
};

bool are_one_machine(std::span<const HostNetwork> hosts) {
  return std::ranges::all_of(
      hosts, [&](const HostNetwork& host) { return host.stack == hosts.front().stack; });
}

NetworkChoice choose_loopback(std::span<const HostNetwork> hosts) {
  NetworkChoice choice;
  for (const HostNetwork& host : hosts) {
    const auto at = std::ranges::find_if(host.addresses, &HostAddress::loopback);
    choice.interfaces.push_back({at == host.addresses.end() ? "lo" : at->interface});
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
bool has_unused(const Subnet& subnet, std::span<const HostNetwork> hosts, const Used& used) {
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (const HostAddress& each : hosts[host].addresses) {
      if (!each.ip().is_unspecified() && subnet.contains(each.ip()) &&
          std::ranges::find(used[host], each.interface, &HostAddress::interface) ==
              used[host].end()) {
        return true;
      }
    }
  }
  return false;
}

/// Uses these, of which no host has none.
NetworkChoice make_choice(std::span<const HostNetwork> hosts, const Used& used) {
  NetworkChoice choice;
  std::vector<std::string> by_host;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    auto& names = choice.interfaces.emplace_back();
    for (const HostAddress& each : used[host]) {
      add_once(names, each.interface);
      const Subnet subnet = subnet_of(each.ip(), each.prefix);
      const bool whole = !has_unused(subnet, hosts, used);  // else by addresses
      add_once(choice.subnets, to_string(whole ? subnet : subnet_of(each.ip(), 32)));
    }
    choice.addresses.push_back(used[host].front().ip());
    by_host.push_back(fmt::format("{}: {}", hosts[host].host, fmt::join(names, "+")));
  }
  choice.line =
      fmt::format("network: {} ({})", fmt::join(choice.subnets, ","), fmt::join(by_host, ", "));
  return choice;
}

constexpr auto kRound = 100ms;                 ///< between two times that datagrams are sent
constexpr auto kShortestTrial = 200ms;         ///< in which not all are heard
constexpr auto kQuiet = 150ms;                 ///< without a new one
constexpr int kMostDatagrams = 256;            ///< read before other descriptors have their turn
constexpr std::size_t kLongestInterface = 64;  ///< of a name: IFNAMSIZ is 16

/// All hosts of a job have one architecture.
struct Datagram {
  std::array<char, 8> magic{'h', 'o', 'r', 'a', 'p', 'r', 'b', '2'};
  std::uint64_t nonce = 0;
  std::uint32_t from_host = 0, from_address = 0, to_host = 0, to_address = 0;
};

}  // namespace

std::string to_string(const IpAddress& address) {
  const std::uint32_t value = address.value;
  return fmt::format("{}.{}.{}.{}", value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255);
}

std::optional<IpAddress> parse_address(const std::string& text) {
  in_addr read{};
  const bool is_text = text.find('\0') == std::string::npos;
  if (!is_text || ::inet_pton(AF_INET, text.c_str(), &read) != 1) return {};
  return IpAddress{ntohl(read.s_addr)};
}

std::string to_string(const Endpoint& endpoint) {
  return fmt::format("{}:{}", to_string(endpoint.address), endpoint.port);
}

SocketAddress::SocketAddress(const IpAddress& address, std::uint16_t port) {
  storage.sin_family = AF_INET;
  storage.sin_port = htons(port);
  storage.sin_addr.s_addr = htonl(address.value);
}

Endpoint SocketAddress::endpoint() const {
  return {{ntohl(storage.sin_addr.s_addr)}, ntohs(storage.sin_port)};
}

std::optional<IpAddress> address_of(const sockaddr* address) {
  if (address == nullptr || address->sa_family != AF_INET) return {};
  return IpAddress{ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr)};
}

Subnet subnet_of(const IpAddress& address, int prefix) {
  const std::uint32_t mask = prefix == 0 ? 0 : ~0U << (32 - prefix);
  return {{address.value & mask}, prefix};
}

bool Subnet::contains(const IpAddress& address) const {
  return subnet_of(address, prefix).base == base;
}

std::string to_string(const Subnet& subnet) {
  return fmt::format("{}/{}", to_string(subnet.base), subnet.prefix);
}

std::vector<HostAddress> this_host_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error(
        ErrorCode::transport,
        fmt::format("this host's network interfaces cannot be listed: {}", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<HostAddress> result;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    HostAddress& made = result.emplace_back();
    made.interface = entry->ifa_name;
    made.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    made.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    // /sys may be that of another network namespace, where this name is another interface.
    const std::string folder = "/sys/class/net/" + made.interface + "/";
    if (number_in_file(folder + "ifindex") == static_cast<int>(::if_nametoindex(entry->ifa_name))) {
      made.hardware = ::access((folder + "device").c_str(), F_OK) == 0;
      made.mtu = number_in_file(folder + "mtu");
      made.speed = number_in_file(folder + "speed");
    }
    if (const auto address = address_of(entry->ifa_addr)) {
      made.address = address->value;
      made.prefix = prefix_of(entry->ifa_netmask);
    }
  }
  // Each interface has an entry of its own, too (AF_PACKET).
  std::set<std::string> used;
  for (const HostAddress& each : result) {
    if (!each.ip().is_unspecified()) used.insert(each.interface);
  }
  std::erase_if(result, [&](const HostAddress& each) {
    return each.ip().is_unspecified() && used.contains(each.interface);
  });
  return result;
}

std::string this_network_stack() {
  std::string start;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  struct stat status {};
  if (::stat("/proc/thread-self/ns/net", &status) != 0) status = {};
  return fmt::format("{}/{}/{}", start, status.st_dev, status.st_ino);
}

std::string describe(std::span<const HostAddress> addresses) {
  std::vector<std::string> texts;
  for (const HostAddress& each : addresses) {
    texts.push_back(fmt::format("{} ({}{})", each.interface,
                                each.ip().is_unspecified()
                                    ? "no address"
                                    : fmt::format("{}/{}", to_string(each.ip()), each.prefix),
                                each.up ? "" : ", down"));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

std::vector<std::size_t> probe_partners(std::size_t host, std::size_t hosts) {
  constexpr std::size_t kFewHosts = 16;
  std::set<std::size_t> partners;
  for (std::size_t step = 1; step < hosts; hosts <= kFewHosts ? ++step : step *= 2) {
    partners.insert((host + step) % hosts);
    partners.insert((host + hosts - step) % hosts);
  }
  return {partners.begin(), partners.end()};
}

NetworkChoice choose_network(std::span<const HostNetwork> hosts, const Reachability& reachability) {
  if (are_one_machine(hosts)) return choose_loopback(hosts);
  const Chooser chooser(hosts, reachability);
  if (const auto best = chooser.best()) return make_choice(hosts, *best);

  const Used used = chooser.own_addresses();
  NetworkChoice choice;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (!used[host].empty()) continue;
    choice.warning =
        fmt::format("host {} has no network interface that is up and has an address; it has {}",
                    hosts[host].host, describe(hosts[host].addresses));
    return choice;
  }
  choice = make_choice(hosts, used);
  choice.warning = (reachability.empty()
                        ? "no host's datagrams reach another (UDP may be blocked), so interfaces "
                          "are used untried"
                        : "no addresses of these hosts reach each other: " + chooser.unreached()) +
                   "; is there a firewall between them? --network-interfaces names the right ones";
  for (const HostNetwork& host : hosts.first(std::min(hosts.size(), kDescribedHosts))) {
    *choice.warning += fmt::format("; host {} has {}", host.host, describe(host.addresses));
  }
  return choice;
}

tl::expected<NetworkChoice, std::string> choose_named(std::span<const HostNetwork> hosts,
                                                      std::span<const std::string> named) {
  const std::string flag =
      "--network-interfaces " + printable(fmt::format("{}", fmt::join(named, ",")));
  const auto is_named = [&](const HostAddress& each) {
    return std::ranges::find(named, each.interface) != named.end();
  };
  const bool local = are_one_machine(hosts);
  Used used;
  std::set<std::string> known;
  for (const HostNetwork& host : hosts) {
    auto& own = used.emplace_back();
    for (const HostAddress& each : host.addresses) {
      known.insert(each.interface);
      const bool is_local = local && each.up && each.loopback;
      if (is_named(each) && (each.is_candidate() || is_local)) own.push_back(each);
    }
    if (!own.empty()) continue;
    return tl::unexpected(
        fmt::format("{}: host {} has no such interface that is up, has an address and leads to "
                    "other hosts; its interfaces are {}; name one for every host, separated by "
                    "commas",
                    flag, host.host, describe(host.addresses)));
  }
  for (const std::string& name : named) {
    if (known.contains(name)) continue;
    return tl::unexpected(fmt::format("{}: no host has {}; host {} has {}", flag, in_quotes(name),
                                      hosts.front().host, describe(hosts.front().addresses)));
  }
  return make_choice(hosts, used);
}

void AgentNetwork::close() {
  for (const UniqueFd& socket : sockets_) loop_.forget(socket.get());
  sockets_.clear();
  paths_.clear();
  started_.reset();
  answered_ = false;
}

void AgentNetwork::tell(const TellNetwork& request, std::vector<HostAddress> addresses) {
  close();
  request_ = request;
  for (HostAddress& each : addresses) {
    UniqueFd& socket = sockets_.emplace_back();
    if (!each.is_candidate()) continue;
    SocketAddress bound(each.ip(), 0);
    socket.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket && ::bind(socket.get(), bound.get(), bound.length) == 0 &&
        ::getsockname(socket.get(), bound.get(), &bound.length) == 0) {
      each.port = bound.endpoint().port;
    }
  }
  send_(to_message({{}, this_network_stack(), std::move(addresses)}));
}

/// Datagrams that came earlier wait in the sockets.
void AgentNetwork::on(const TryNetwork& request) {
  if (request.targets.empty()) return close();
  if (started_) return;
  for (std::uint32_t own = 0; own < sockets_.size(); ++own) {
    if (!sockets_[own]) continue;
    loop_.watch(sockets_[own].get(), POLLIN, [this, own](short) { on_readable(own); });
    for (const wire::NetworkTarget& target : request.targets) {
      paths_.push_back(
          {ProbePair(own, target.host(), target.index()), {{target.address()}, target.port()}});
    }
  }
  started_ = next_round_ = last_heard_ = Clock::now();
}

/// A datagram that cannot be sent counts as one that is lost.
void AgentNetwork::on_time(Clock::time_point now) {
  if (!started_) return;
  if (now >= next_round_) {
    next_round_ = now + kRound;
    for (const auto& [pair, peer, heard] : paths_) {
      const Datagram datagram{.nonce = request_.nonce,
                              .from_host = request_.host,
                              .from_address = pair.address(),
                              .to_host = pair.peer(),
                              .to_address = pair.peer_address()};
      const SocketAddress to(peer.address, peer.port);
      static_cast<void>(::sendto(sockets_[pair.address()].get(), &datagram, sizeof datagram,
                                 MSG_DONTWAIT | MSG_NOSIGNAL, to.get(), to.length));
    }
  }
  if (answered_ || !is_done(now)) return;
  answered_ = true;
  NetworkTried tried;
  for (const Path& path : paths_) {
    if (path.heard) tried.pairs.push_back(path.pair);
  }
  send_(tried);
}

void AgentNetwork::on_readable(std::uint32_t address) {
  for (int i = 0; i < kMostDatagrams; ++i) {
    std::array<std::byte, sizeof(Datagram) + 1> bytes;  // longer ones show by their length
    SocketAddress from;
    const ssize_t count = ::recvfrom(sockets_[address].get(), bytes.data(), bytes.size(),
                                     MSG_DONTWAIT, from.get(), &from.length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    Datagram datagram;
    std::memcpy(&datagram, bytes.data(), sizeof datagram);
    if (count != sizeof(Datagram) || datagram.magic != Datagram().magic ||
        datagram.nonce != request_.nonce || datagram.to_host != request_.host ||
        datagram.to_address != address) {
      continue;
    }
    const ProbePair pair(address, datagram.from_host, datagram.from_address);
    for (Path& path : paths_) {
      if (path.heard || std::memcmp(&path.pair, &pair, sizeof pair) != 0 ||
          path.peer != from.endpoint()) {
        continue;
      }
      path.heard = true;
      last_heard_ = Clock::now();
    }
  }
}

bool AgentNetwork::is_done(Clock::time_point now) const {
  std::set<std::uint32_t> silent, heard;
  for (const Path& path : paths_) (path.heard ? heard : silent).insert(path.pair.peer());
  const bool quiet = now >= *started_ + kShortestTrial && now >= last_heard_ + kQuiet;
  return silent.empty() || now >= *started_ + kLongest ||
         (quiet && std::ranges::includes(heard, silent));
}

NetworkTold to_message(const HostNetwork& network) {
  NetworkTold told;
  told.stack = network.stack;
  for (const HostAddress& each : network.addresses) {
    told.addresses.push_back(std::make_unique<wire::NetworkAddressT>(each));
  }
  return told;
}

HostNetwork from_message(const NetworkTold& told, const std::string& host) {
  HostNetwork result{host, told.stack, {}};
  for (const auto& entry : told.addresses) {
    result.addresses.push_back({*entry});
    result.addresses.back().interface = printable(entry->interface, kLongestInterface);
  }
  return result;
}

NetworkTrial::NetworkTrial(const std::vector<std::string>& hosts, std::vector<std::string> named,
                           std::uint64_t nonce)
    : named_(std::move(named)), nonce_(nonce) {
  for (const std::string& host : hosts) hosts_.push_back({host, {}, {}});
  await_all();
}

void NetworkTrial::await_all() {
  for (std::size_t host = 0; host < hosts_.size(); ++host) silent_.insert(host);
}

NetworkTrial::Messages NetworkTrial::start() const {
  Messages messages;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    messages.emplace_back(host, TellNetwork{{}, static_cast<std::uint32_t>(host), nonce_});
  }
  return messages;
}

NetworkTrial::Messages NetworkTrial::on(std::size_t host, const NetworkTold& told) {
  if (result_ || all_told_) return {};
  hosts_[host] = from_message(told, hosts_.at(host).host);
  silent_.erase(host);
  return silent_.empty() ? compare() : Messages();
}

NetworkTrial::Messages NetworkTrial::compare() {
  all_told_ = true;
  if (!named_.empty()) return conclude(choose_named(hosts_, named_));
  if (are_one_machine(hosts_)) return conclude(choose_network(hosts_, {}));
  await_all();
  Messages messages;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    TryNetwork request;
    for (const std::size_t peer : probe_partners(host, hosts_.size())) {
      const auto& addresses = hosts_[peer].addresses;
      for (std::uint32_t i = 0; i < addresses.size(); ++i) {
        if (addresses[i].port == 0) continue;
        request.targets.emplace_back(static_cast<std::uint32_t>(peer), i, addresses[i].address,
                                     addresses[i].port);
      }
    }
    if (request.targets.empty()) silent_.erase(host);
    messages.emplace_back(host, std::move(request));
  }
  return silent_.empty() ? give_up() : messages;
}

NetworkTrial::Messages NetworkTrial::on(std::size_t host, const NetworkTried& tried) {
  if (result_ || !all_told_) return {};
  for (const ProbePair& pair : tried.pairs) {
    reachability_.insert({host, pair.address(), pair.peer(), pair.peer_address()});
  }
  silent_.erase(host);
  return silent_.empty() ? give_up() : Messages();
}

NetworkTrial::Messages NetworkTrial::give_up() {
  if (result_) return {};
  if (!all_told_) {
    std::vector<std::string> silent;
    for (const std::size_t host : silent_) silent.push_back(hosts_[host].host);
    return conclude(tl::unexpected(
        fmt::format("no network interfaces were told by {}", fmt::join(silent, ", "))));
  }
  NetworkChoice choice = choose_network(hosts_, reachability_);
  if (choice.addresses.empty()) return conclude(tl::unexpected(*choice.warning));
  return conclude(std::move(choice));
}

std::set<std::pair<std::size_t, std::size_t>> NetworkTrial::joined(
    const std::vector<IpAddress>& addresses) const {
  const auto is_chosen = [&](std::size_t host, std::size_t address) {
    return host < hosts_.size() && address < hosts_[host].addresses.size() &&
           hosts_[host].addresses[address].ip() == addresses.at(host);
  };
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  for (const auto& [host, own, peer, other] : reachability_) {
    if (is_chosen(host, own) && is_chosen(peer, other)) pairs.insert(std::minmax(host, peer));
  }
  return pairs;
}

/// Agents close their sockets: a message without targets ends the trial.
NetworkTrial::Messages NetworkTrial::conclude(tl::expected<NetworkChoice, std::string> result) {
  result_ = std::move(result);
  Messages messages;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    messages.emplace_back(host, TryNetwork());
  }
  return messages;
}

}  // namespace hora::launch
