#include "core/launch/network/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <tuple>

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

constexpr std::array<std::uint8_t, 12> kIpv4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

IpAddress from(const in_addr& address) {
  IpAddress result;
  std::ranges::copy(kIpv4, result.bytes.begin());
  std::memcpy(result.bytes.data() + kIpv4.size(), &address, sizeof address);
  return result;
}

IpAddress from(const in6_addr& address) {
  IpAddress result;
  std::memcpy(result.bytes.data(), &address, sizeof address);
  return result;
}

/// The bytes of the address in its own family.
std::span<const std::uint8_t> own_bytes(const IpAddress& address) {
  return std::span(address.bytes).subspan(address.is_ipv4() ? kIpv4.size() : 0);
}

bool is_zero(std::span<const std::uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](int byte) { return byte == 0; });
}

}  // namespace

bool IpAddress::is_ipv4() const {
  return std::equal(kIpv4.begin(), kIpv4.end(), bytes.begin());
}

bool IpAddress::is_loopback() const {
  return is_ipv4() ? bytes[12] == 127 : bytes[15] == 1 && is_zero(std::span(bytes).first(15));
}

bool IpAddress::is_unspecified() const {
  return is_zero(own_bytes(*this));
}

bool IpAddress::is_of_one_link() const {
  return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

std::string to_string(const IpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(address.system_family(), own_bytes(address).data(), text.data(), text.size());
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
  if (endpoint.address.is_ipv4()) return fmt::format("{}:{}", address, endpoint.port);
  return fmt::format("[{}]:{}", address, endpoint.port);
}

SocketAddress::SocketAddress(const IpAddress& address, std::uint16_t port) {
  const auto bytes = own_bytes(address);
  if (address.is_ipv4()) {
    sockaddr_in ipv4{
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
    std::memcpy(&ipv4.sin_addr, bytes.data(), bytes.size());
    std::memcpy(&storage, &ipv4, length = sizeof ipv4);
  } else {
    sockaddr_in6 ipv6{};
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    std::memcpy(&ipv6.sin6_addr, bytes.data(), bytes.size());
    std::memcpy(&storage, &ipv6, length = sizeof ipv6);
  }
}

std::optional<IpAddress> SocketAddress::address() const {
  return address_of(get());
}

/// Both families have the port at the same place.
std::uint16_t SocketAddress::port() const {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
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

Subnet subnet_of(const IpAddress& address, int prefix) {
  Subnet subnet{address, prefix};
  for (int bit = prefix + 128 - address.bits(); bit < 128; ++bit) {
    subnet.base.bytes[static_cast<std::size_t>(bit / 8)] &=
        static_cast<std::uint8_t>(~(0x80u >> (bit % 8)));
  }
  return subnet;
}

bool Subnet::contains(const IpAddress& address) const {
  return address.is_ipv4() == base.is_ipv4() && subnet_of(address, prefix).base == base;
}

std::string to_string(const Subnet& subnet) {
  return fmt::format("{}/{}", to_string(subnet.base), subnet.prefix);
}

namespace {

int prefix_of(const sockaddr* mask, const IpAddress& address) {
  const auto read = address_of(mask);
  if (!read) return address.bits();
  int bits = 0;
  for (const std::uint8_t byte : own_bytes(*read)) bits += std::popcount(byte);
  return bits;
}

/// A number in a file of the kernel, 0 where there is none: reading the speed of a bridge or of an
/// interface that is down fails, and of an unknown speed it gives -1.
int number_in_file(const std::string& path) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? std::max(number, 0) : 0;
}

Interface describe_interface(const std::string& name, unsigned flags) {
  Interface interface;
  interface.name = name;
  interface.up = (flags & IFF_UP) != 0 && (flags & IFF_RUNNING) != 0;
  interface.loopback = (flags & IFF_LOOPBACK) != 0;
  // /sys may be that of another network namespace, where this name is another interface.
  const std::string folder = "/sys/class/net/" + name + "/";
  if (number_in_file(folder + "ifindex") == static_cast<int>(::if_nametoindex(name.c_str()))) {
    interface.hardware = ::access((folder + "device").c_str(), F_OK) == 0;
    interface.mtu = number_in_file(folder + "mtu");
    interface.speed = number_in_file(folder + "speed");
  }
  return interface;
}

}  // namespace

std::vector<Interface> this_host_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error(
        ErrorCode::transport,
        fmt::format("this host's network interfaces cannot be listed: {}", std::strerror(errno)));
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
    if (const auto address = address_of(entry->ifa_addr)) {
      at->addresses.push_back({*address, prefix_of(entry->ifa_netmask, *address)});
    }
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
    std::vector<std::string> parts;
    for (const InterfaceAddress& at : interface.addresses) {
      if (at.address.is_of_one_link()) continue;
      parts.push_back(fmt::format("{}/{}", to_string(at.address), at.prefix));
    }
    if (parts.empty()) parts.emplace_back("no address");
    if (!interface.up) parts.emplace_back("down");
    texts.push_back(fmt::format("{} ({})", interface.name, fmt::join(parts, ", ")));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

namespace {

/// Those of interfaces that are up and of which `takes` is true.
template <class Takes>
std::vector<Candidate> addresses_of(const HostNetwork& host, const Takes& takes) {
  std::vector<Candidate> addresses;
  for (std::size_t i = 0; i < host.interfaces.size(); ++i) {
    const Interface& interface = host.interfaces[i];
    if (!interface.up || !takes(interface)) continue;
    for (const InterfaceAddress& at : interface.addresses) {
      if (!at.address.is_of_one_link()) addresses.push_back({i, at.address, at.prefix});
    }
  }
  return addresses;
}

}  // namespace

std::vector<Candidate> candidates_of(const HostNetwork& host) {
  return addresses_of(host, [](const Interface& interface) { return !interface.loopback; });
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

namespace {

/// By host.
using Candidates = std::vector<std::vector<Candidate>>;
/// One candidate for each host, by its index.
using Assignment = std::vector<std::size_t>;

constexpr std::size_t kDescribedHosts = 4;  ///< whose interfaces a warning lists
constexpr std::size_t kShownPairs = 8;

/// Where the kernel does not say: of a device a usual speed, of a tunnel a low one.
int speed_of(const Interface& interface) {
  if (interface.speed > 0) return interface.speed;
  return interface.hardware ? 1000 : 10;
}

class Chooser {
 public:
  Chooser(std::span<const HostNetwork> hosts, const Reachability& reachability)
      : hosts_(hosts), reachability_(reachability) {
    for (const HostNetwork& host : hosts) candidates_.push_back(candidates_of(host));
  }

  /// The best assignment of which all reach each other, if there is any.
  std::optional<Candidates> best() const {
    std::optional<Assignment> best;
    for (std::size_t first = 0; first < candidates_[0].size(); ++first) {
      auto assignment = extend(first);
      if (assignment && (!best || score(*assignment) > score(*best))) best = assignment;
    }
    if (!best) return {};
    Candidates used;
    for (std::size_t host = 0; host < best->size(); ++host) {
      used.push_back({candidates_[host][(*best)[host]]});
    }
    return used;
  }

  /// All but those addresses that several machines have; a host without any keeps all that it has.
  Candidates own_addresses() const {
    std::map<IpAddress, std::set<std::string>> owners;
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      for (const Candidate& at : candidates_[host]) owners[at.address].insert(hosts_[host].stack);
    }
    Candidates own = candidates_;
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      std::erase_if(own[host], [&](const auto& at) { return owners.at(at.address).size() > 1; });
      if (own[host].empty()) own[host] = candidates_[host];
    }
    return own;
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
  bool mutual(std::size_t host, std::size_t candidate, std::size_t peer,
              std::size_t peer_candidate) const {
    return reachability_.contains({host, candidate, peer, peer_candidate}) &&
           reachability_.contains({peer, peer_candidate, host, candidate});
  }

  bool reach(std::size_t host, std::size_t peer) const {
    for (std::size_t a = 0; a < candidates_[host].size(); ++a) {
      for (std::size_t b = 0; b < candidates_[peer].size(); ++b) {
        if (mutual(host, a, peer, b)) return true;
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
      return peer >= assignment.size() || mutual(host, candidate, peer, assignment[peer]);
    });
  }

  /// Greater is better; the slowest host counts.
  std::tuple<int, bool, bool, int, bool> score(const Assignment& assignment) const {
    constexpr int kMost = std::numeric_limits<int>::max();
    std::tuple<int, bool, bool, int, bool> worst{kMost, true, true, kMost, true};
    auto& [speed, hardware, one_subnet, mtu, ipv4] = worst;
    for (std::size_t host = 0; host < assignment.size(); ++host) {
      const Interface& interface = interface_of(host, assignment[host]);
      speed = std::min(speed, speed_of(interface));
      hardware = hardware && interface.hardware;
      one_subnet = one_subnet && in_subnet_of(assignment[0], host, assignment[host]);
      mtu = std::min(mtu, interface.mtu);
      ipv4 = ipv4 && candidates_[host][assignment[host]].address.is_ipv4();
    }
    return worst;
  }

  std::span<const HostNetwork> hosts_;
  const Reachability& reachability_;
  Candidates candidates_;
};

bool are_one_machine(std::span<const HostNetwork> hosts) {
  return std::ranges::all_of(
      hosts, [&](const HostNetwork& host) { return host.stack == hosts.front().stack; });
}

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
bool has_unused(const Subnet& subnet, std::span<const HostNetwork> hosts, const Candidates& used) {
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

/// Uses these, of which no host has none.
NetworkChoice make_choice(std::span<const HostNetwork> hosts, const Candidates& used) {
  NetworkChoice choice;
  std::vector<std::string> by_host;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    auto& names = choice.interfaces.emplace_back();
    for (const Candidate& at : used[host]) {
      add_once(names, hosts[host].interfaces[at.interface].name);
      const Subnet subnet = subnet_of(at.address, at.prefix);
      const bool whole = !has_unused(subnet, hosts, used);  // else by addresses
      add_once(choice.subnets,
               to_string(whole ? subnet : subnet_of(at.address, at.address.bits())));
    }
    choice.addresses.push_back(used[host].front().address);
    by_host.push_back(fmt::format("{}: {}", hosts[host].host, fmt::join(names, "+")));
  }
  choice.line =
      fmt::format("network: {} ({})", fmt::join(choice.subnets, ","), fmt::join(by_host, ", "));
  return choice;
}

}  // namespace

std::string pairs_text(std::vector<std::string> pairs, std::size_t shown) {
  const std::size_t count = pairs.size();
  if (count > shown) {
    pairs.resize(shown);
    pairs.push_back(fmt::format("... ({} pairs)", count));
  }
  return fmt::format("{}", fmt::join(pairs, ", "));
}

NetworkChoice choose_network(std::span<const HostNetwork> hosts, const Reachability& reachability) {
  if (are_one_machine(hosts)) return choose_loopback(hosts);
  const Chooser chooser(hosts, reachability);
  if (const auto best = chooser.best()) return make_choice(hosts, *best);

  const Candidates used = chooser.own_addresses();
  NetworkChoice choice;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (!used[host].empty()) continue;
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
  for (const HostNetwork& host : hosts.first(std::min(hosts.size(), kDescribedHosts))) {
    *choice.warning += fmt::format("; host {} has {}", host.host, describe(host.interfaces));
  }
  return choice;
}

tl::expected<NetworkChoice, std::string> choose_named(std::span<const HostNetwork> hosts,
                                                      std::span<const std::string> named) {
  const std::string flag =
      "--network-interfaces " + printable(fmt::format("{}", fmt::join(named, ",")));
  const bool local = are_one_machine(hosts);
  Candidates used;
  std::set<std::string> known;
  for (const HostNetwork& host : hosts) {
    for (const Interface& each : host.interfaces) known.insert(each.name);
    auto& own = used.emplace_back(addresses_of(host, [&](const Interface& interface) {
      return (local || !interface.loopback) &&
             std::ranges::find(named, interface.name) != named.end();
    }));
    std::ranges::stable_sort(own, {}, [](const Candidate& at) { return !at.address.is_ipv4(); });
    if (!own.empty()) continue;
    return tl::unexpected(
        fmt::format("{}: host {} has no such interface that is up, has an address and leads to "
                    "other hosts; its "
                    "interfaces are {}; name one for every host, separated by commas",
                    flag, host.host, describe(host.interfaces)));
  }
  for (const std::string& name : named) {
    if (known.contains(name)) continue;
    return tl::unexpected(fmt::format("{}: no host has {}; host {} has {}", flag, in_quotes(name),
                                      hosts.front().host, describe(hosts.front().interfaces)));
  }
  return make_choice(hosts, used);
}

namespace {

constexpr auto kRound = 100ms;                 ///< between two times that datagrams are sent
constexpr auto kShortestTrial = 200ms;         ///< in which not all are heard
constexpr auto kQuiet = 150ms;                 ///< without a new one
constexpr int kMostDatagrams = 256;            ///< read before other descriptors have their turn
constexpr std::size_t kLongestInterface = 64;  ///< of a name: IFNAMSIZ is 16

/// All hosts of a job have one architecture.
struct Datagram {
  std::array<char, 8> magic{'h', 'o', 'r', 'a', 'p', 'r', 'b', '2'};
  std::uint64_t nonce = 0;
  std::uint32_t from_host = 0, from_candidate = 0, to_host = 0, to_candidate = 0;
};

}  // namespace

Probe::Probe(EventLoop& loop, std::size_t host, std::uint64_t nonce,
             std::span<const IpAddress> candidates)
    : loop_(loop), host_(static_cast<std::uint32_t>(host)), nonce_(nonce) {
  for (const IpAddress& address : candidates) {
    Socket& made = sockets_.emplace_back(Socket{{address, 0}, {}});
    UniqueFd socket(
        ::socket(address.system_family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    SocketAddress bound(address, 0);
    if (!socket || ::bind(socket.get(), bound.get(), bound.length) != 0 ||
        ::getsockname(socket.get(), bound.get(), &bound.length) != 0) {
      continue;
    }
    made.at.port = bound.port();
    made.descriptor = std::move(socket);
  }
}

Probe::~Probe() {
  for (const Socket& socket : sockets_) loop_.forget(socket.descriptor.get());
}

std::vector<Endpoint> Probe::endpoints() const {
  std::vector<Endpoint> endpoints;
  for (const Socket& socket : sockets_) endpoints.push_back(socket.at);
  return endpoints;
}

void Probe::start(const std::vector<ProbePeer>& peers, Clock::time_point now) {
  for (std::uint32_t own = 0; own < sockets_.size(); ++own) {
    if (!sockets_[own].descriptor) continue;
    loop_.watch(sockets_[own].descriptor.get(), POLLIN, [this, own](short) { on_readable(own); });
    for (const ProbePeer& peer : peers) {
      for (std::uint32_t to = 0; to < peer.endpoints.size(); ++to) {
        const Endpoint& at = peer.endpoints[to];
        if (at.port == 0 || at.address.is_ipv4() != sockets_[own].at.address.is_ipv4()) continue;
        paths_.push_back({ProbePair(own, static_cast<std::uint32_t>(peer.host), to), at});
      }
    }
  }
  started_ = next_round_ = last_heard_ = now;
  on_time(now);
}

/// A datagram that cannot be sent counts as one that is lost.
void Probe::on_time(Clock::time_point now) {
  if (!started_ || now < next_round_) return;
  next_round_ = now + kRound;
  for (const auto& [pair, peer, heard] : paths_) {
    const Datagram datagram{.nonce = nonce_,
                            .from_host = host_,
                            .from_candidate = pair.candidate(),
                            .to_host = pair.peer(),
                            .to_candidate = pair.peer_candidate()};
    const SocketAddress to(peer.address, peer.port);
    static_cast<void>(::sendto(sockets_[pair.candidate()].descriptor.get(), &datagram,
                               sizeof datagram, MSG_DONTWAIT | MSG_NOSIGNAL, to.get(), to.length));
  }
}

void Probe::on_readable(std::uint32_t candidate) {
  for (int i = 0; i < kMostDatagrams; ++i) {
    std::array<std::byte, sizeof(Datagram) + 1> bytes;  // longer ones show by their length
    SocketAddress from;
    const ssize_t count = ::recvfrom(sockets_[candidate].descriptor.get(), bytes.data(),
                                     bytes.size(), MSG_DONTWAIT, from.get(), &from.length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    Datagram datagram;
    std::memcpy(&datagram, bytes.data(), sizeof datagram);
    const auto address = from.address();
    if (count != sizeof(Datagram) || !address || datagram.magic != Datagram().magic ||
        datagram.nonce != nonce_ || datagram.to_host != host_ ||
        datagram.to_candidate != candidate) {
      continue;
    }
    for (Path& path : paths_) {
      const ProbePair& pair = path.pair;
      if (path.heard || pair.candidate() != candidate || pair.peer() != datagram.from_host ||
          pair.peer_candidate() != datagram.from_candidate ||
          path.peer != Endpoint{*address, from.port()}) {
        continue;
      }
      path.heard = true;
      last_heard_ = Clock::now();
    }
  }
}

std::optional<std::vector<ProbePair>> Probe::result(Clock::time_point now) const {
  if (!started_) return std::nullopt;
  std::vector<ProbePair> pairs;
  std::set<std::uint32_t> peers, heard;
  for (const Path& path : paths_) {
    peers.insert(path.pair.peer());
    if (!path.heard) continue;
    heard.insert(path.pair.peer());
    pairs.push_back(path.pair);
  }
  const bool quiet = now >= *started_ + kShortestTrial && now >= last_heard_ + kQuiet;
  if (pairs.size() == paths_.size() || now >= *started_ + kLongest || (quiet && heard == peers)) {
    return pairs;
  }
  return std::nullopt;
}

void AgentNetwork::on(const TellNetwork& request) {
  const HostNetwork network{{}, this_network_stack(), this_host_interfaces()};
  std::vector<IpAddress> addresses;
  for (const Candidate& candidate : candidates_of(network)) addresses.push_back(candidate.address);
  probe_.emplace(loop_, request.host, request.nonce, addresses);
  answered_ = false;
  send_(to_message(network, probe_->endpoints()));
}

void AgentNetwork::on(const TryNetwork& request) {
  if (!probe_ || (probe_->started() && !request.peers.empty())) return;
  if (request.peers.empty()) return probe_.reset();
  std::vector<ProbePeer> peers;
  for (const auto& entry : request.peers) {
    ProbePeer& peer = peers.emplace_back(ProbePeer{entry->host, {}});
    for (std::size_t i = 0; i < entry->addresses.size(); ++i) {
      const auto address = parse_address(entry->addresses[i]);
      if (!address || i >= entry->ports.size()) return;
      peer.endpoints.push_back({*address, entry->ports[i]});
    }
  }
  probe_->start(peers, Clock::now());
}

void AgentNetwork::on_time(Clock::time_point now) {
  if (!probe_) return;
  probe_->on_time(now);
  if (answered_) return;
  auto pairs = probe_->result(now);
  if (!pairs) return;
  answered_ = true;
  NetworkTried tried;
  tried.pairs = std::move(*pairs);
  send_(tried);
}

NetworkTold to_message(const HostNetwork& network, const std::vector<Endpoint>& endpoints) {
  NetworkTold told;
  told.stack = network.stack;
  for (const Interface& interface : network.interfaces) {
    auto& entry = told.interfaces.emplace_back(std::make_unique<wire::NetworkInterfaceT>());
    entry->name = interface.name;
    entry->up = interface.up;
    entry->loopback = interface.loopback;
    entry->hardware = interface.hardware;
    entry->mtu = interface.mtu;
    entry->speed = interface.speed;
    for (const InterfaceAddress& at : interface.addresses) {
      entry->addresses.push_back(to_string(at.address));
      entry->prefixes.push_back(at.prefix);
    }
  }
  for (const Endpoint& endpoint : endpoints) told.ports.push_back(endpoint.port);
  return told;
}

tl::expected<ToldNetwork, std::string> from_message(const NetworkTold& told,
                                                    const std::string& host) {
  ToldNetwork result{{host, told.stack, {}}, {}};
  for (const auto& entry : told.interfaces) {
    Interface& made = result.network.interfaces.emplace_back();
    made = {.name = printable(entry->name, kLongestInterface),
            .up = entry->up,
            .loopback = entry->loopback,
            .hardware = entry->hardware,
            .mtu = entry->mtu,
            .speed = entry->speed,
            .addresses = {}};
    for (std::size_t i = 0; i < entry->addresses.size(); ++i) {
      const auto address = parse_address(entry->addresses[i]);
      const int prefix = i < entry->prefixes.size() ? entry->prefixes[i] : -1;
      if (!address || prefix < 0 || prefix > address->bits()) {
        return tl::unexpected<std::string>("an interface's address is none");
      }
      made.addresses.push_back({*address, prefix});
    }
  }
  const std::vector<Candidate> candidates = candidates_of(result.network);
  if (told.ports.size() != candidates.size()) {
    return tl::unexpected(
        fmt::format("it names {} ports for {} addresses", told.ports.size(), candidates.size()));
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    result.endpoints.push_back({candidates[i].address, told.ports[i]});
  }
  return result;
}

NetworkTrial::NetworkTrial(std::vector<std::string> hosts, std::vector<std::string> named,
                           std::uint64_t nonce)
    : names_(std::move(hosts)),
      named_(std::move(named)),
      nonce_(nonce),
      told_(names_.size()),
      tried_(names_.size()) {
  for (std::size_t host = 0; host < names_.size(); ++host) silent_.insert(host);
}

NetworkTrial::Messages NetworkTrial::start() const {
  Messages messages;
  for (std::size_t host = 0; host < names_.size(); ++host) {
    TellNetwork request;
    request.host = static_cast<std::uint32_t>(host);
    request.nonce = nonce_;
    messages.emplace_back(host, std::move(request));
  }
  return messages;
}

NetworkTrial::Messages NetworkTrial::on(std::size_t host, const NetworkTold& told) {
  if (result_ || told_.at(host)) return {};
  auto read = from_message(told, names_[host]);
  if (!read) {
    return conclude(tl::unexpected(fmt::format(
        "host {} has told its network interfaces wrongly: {}", names_[host], read.error())));
  }
  told_[host] = std::move(*read);
  const bool all = std::ranges::all_of(told_, [](const auto& each) { return each.has_value(); });
  return all ? compare() : Messages();
}

NetworkTrial::Messages NetworkTrial::compare() {
  for (const auto& told : told_) hosts_.push_back(told->network);
  if (!named_.empty()) return conclude(choose_named(hosts_, named_));
  if (are_one_machine(hosts_)) return conclude(choose_network(hosts_, {}));
  Messages messages;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    TryNetwork request;
    for (const std::size_t peer : probe_partners(host, hosts_.size())) {
      auto& entry = request.peers.emplace_back(std::make_unique<wire::NetworkPeerT>());
      entry->host = static_cast<std::uint32_t>(peer);
      for (const Endpoint& endpoint : told_[peer]->endpoints) {
        entry->addresses.push_back(to_string(endpoint.address));
        entry->ports.push_back(endpoint.port);
      }
    }
    messages.emplace_back(host, std::move(request));
  }
  return messages;
}

NetworkTrial::Messages NetworkTrial::on(std::size_t host, const NetworkTried& tried) {
  if (result_ || hosts_.empty()) return {};
  tried_.at(host) = tried.pairs;
  silent_.erase(host);
  return silent_.empty() ? give_up() : Messages();
}

NetworkTrial::Messages NetworkTrial::give_up() {
  if (result_) return {};
  if (hosts_.empty()) {
    std::vector<std::string> silent;
    for (std::size_t host = 0; host < names_.size(); ++host) {
      if (!told_[host]) silent.push_back(names_[host]);
    }
    return conclude(tl::unexpected(
        fmt::format("no network interfaces were told by {}", fmt::join(silent, ", "))));
  }
  Reachability reachability;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    for (const ProbePair& pair : tried_[host]) {
      reachability.insert({host, pair.candidate(), pair.peer(), pair.peer_candidate()});
    }
  }
  NetworkChoice choice = choose_network(hosts_, reachability);
  if (choice.addresses.empty()) return conclude(tl::unexpected(*choice.warning));
  return conclude(std::move(choice));
}

std::set<std::pair<std::size_t, std::size_t>> NetworkTrial::joined(
    const std::vector<IpAddress>& addresses) const {
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  const auto has = [&](std::size_t host, std::size_t candidate) {
    const auto& endpoints = told_.at(host)->endpoints;
    return host < addresses.size() && candidate < endpoints.size() &&
           endpoints[candidate].address == addresses[host];
  };
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    for (const ProbePair& pair : tried_[host]) {
      const std::size_t peer = pair.peer();
      if (peer < hosts_.size() && has(host, pair.candidate()) && has(peer, pair.peer_candidate())) {
        pairs.insert(std::minmax(host, peer));
      }
    }
  }
  return pairs;
}

/// Agents close their sockets: a message without peers ends the trial.
NetworkTrial::Messages NetworkTrial::conclude(tl::expected<NetworkChoice, std::string> result) {
  result_ = std::move(result);
  Messages messages;
  for (std::size_t host = 0; host < names_.size(); ++host)
    messages.emplace_back(host, TryNetwork());
  return messages;
}

}  // namespace hora::launch
