/// Which network the ranks of a job use: hosts' addresses as values, the trial of which reach
/// which, and the choice. Bridges (docker0, virbr0) drop out: they do not reach other hosts.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "core/launch/control/channel.h"
#include "core/launch/control/system.h"

namespace hora::launch {

/// An IPv4 address.
struct IpAddress {
  std::uint32_t value = 0;  ///< 10.0.0.1 is 0x0a000001

  bool is_loopback() const { return value >> 24 == 127; }
  bool is_unspecified() const { return value == 0; }
  auto operator<=>(const IpAddress&) const = default;
};

/// "10.77.0.1".
std::string to_string(const IpAddress& address);
/// Reads exactly such a text, without port.
std::optional<IpAddress> parse_address(const std::string& text);

/// A place to connect to.
struct Endpoint {
  IpAddress address;
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
};
/// "10.77.0.1:29500".
std::string to_string(const Endpoint& endpoint);

/// An address with a port, as sockets take it.
struct SocketAddress {
  sockaddr_in storage{};
  socklen_t length = sizeof(sockaddr_in);

  SocketAddress() = default;
  SocketAddress(const IpAddress& address, std::uint16_t port);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  Endpoint endpoint() const;
};

/// Nothing for null, and for other families than IPv4.
std::optional<IpAddress> address_of(const sockaddr* address);

/// The addresses whose first `prefix` bits are those of `base`, whose other bits are 0.
struct Subnet {
  IpAddress base;
  int prefix = 0;

  bool contains(const IpAddress& address) const;
};
Subnet subnet_of(const IpAddress& address, int prefix);
/// "10.77.0.0/24".
std::string to_string(const Subnet& subnet);

/// An address of a host, and the interface that has it, as agents tell it (control.fbs).
struct HostAddress : wire::NetworkAddressT {
  IpAddress ip() const { return {address}; }  ///< unspecified: the interface has none
  /// Whether other hosts may reach this one by it: its interface is up, and no loopback.
  bool is_candidate() const { return up && !loopback && address != 0; }
};

/// One host, as the choice of interfaces knows it.
struct HostNetwork {
  std::string host;
  std::string stack;  ///< equal where two hosts share one network stack: one machine, two names
  std::vector<HostAddress> addresses;
};

/// The addresses of this host's interfaces, in the kernel's order. Throws Error(transport) where
/// the system does not give them. Takes below 10 ms.
std::vector<HostAddress> this_host_addresses();

/// Names this operating system's start and this thread's network namespace.
std::string this_network_stack();

/// "eth0 (10.77.0.1/24), docker0 (172.17.0.1/16, down), ib0 (no address)"; "none".
std::string describe(std::span<const HostAddress> addresses);

/// The hosts that `host` tries to reach: all others where there are few, else those a power of two
/// away, round the circle. The relation is symmetric, and joins all hosts.
std::vector<std::size_t> probe_partners(std::size_t host, std::size_t hosts);

/// {host, address, peer, its address}, by their indices: a datagram of the latter came to the
/// former.
using Reachability = std::set<std::array<std::size_t, 4>>;

struct NetworkChoice {
  std::vector<std::vector<std::string>> interfaces;  ///< by host: the names of its interfaces
  std::vector<IpAddress> addresses;                  ///< by host: the one that peers use first
  /// "10.77.0.0/24": contain the chosen addresses, and none of an interface that is not chosen.
  std::vector<std::string> subnets;
  std::string line;                    ///< "network: 10.77.0.0/24 (a: eth0, b: ens3)"
  std::optional<std::string> warning;  ///< where the choice may be wrong, and what to do

  bool operator==(const NetworkChoice&) const = default;
};

/// Chooses an address for each host, which reach each other both ways: by speed, hardware before
/// software, one subnet before several, MTU. Loopback where all hosts are one machine; where
/// nothing joins all, every address that no two hosts share, and a warning.
NetworkChoice choose_network(std::span<const HostNetwork> hosts, const Reachability& reachability);

/// Chooses the user's --network-interfaces: each host uses those of its interfaces that are named.
/// The error names a host that has none of them up and with an address, or a name that
/// no host has.
tl::expected<NetworkChoice, std::string> choose_named(std::span<const HostNetwork> hosts,
                                                      std::span<const std::string> named);

/// To an address of this host, by its index, came a datagram of a peer's.
using ProbePair = wire::NetworkPair;

/// An agent's part of the trial: finds out which addresses of other hosts reach this one's. Its UDP
/// sockets at each candidate send datagrams to all addresses of partners. Those count that hold
/// the job's nonce and come from the very address and port that the launcher has told. Answers when
/// all were heard, each peer once and then for a while no more, or after kLongest. Thread rule: the
/// loop's thread.
class AgentNetwork {
 public:
  static constexpr std::chrono::milliseconds kLongest{1000};

  /// `send` takes the answers. The loop outlives it.
  AgentNetwork(EventLoop& loop, std::function<void(const Message&)> send)
      : loop_(loop), send_(std::move(send)) {}
  ~AgentNetwork() { close(); }
  AgentNetwork(const AgentNetwork&) = delete;
  AgentNetwork& operator=(const AgentNetwork&) = delete;

  void on(const TellNetwork& request) { tell(request, this_host_addresses()); }
  void on(const TryNetwork& request);
  /// The first message's answer for a host of these addresses.
  void tell(const TellNetwork& request, std::vector<HostAddress> addresses);
  /// Called at least ten times a second.
  void on_time(Clock::time_point now);

 private:
  struct Path {
    ProbePair pair;
    Endpoint peer;
    bool heard = false;
  };

  void on_readable(std::uint32_t address);
  bool is_done(Clock::time_point now) const;
  void close();

  EventLoop& loop_;
  std::function<void(const Message&)> send_;
  TellNetwork request_;
  std::vector<UniqueFd> sockets_;  ///< by address; none where it is not tried
  std::vector<Path> paths_;
  std::optional<Clock::time_point> started_;
  Clock::time_point next_round_, last_heard_;
  bool answered_ = false;
};

/// An agent's message of its host's network.
NetworkTold to_message(const HostNetwork& network);
HostNetwork from_message(const NetworkTold& told, const std::string& host);

/// The launcher's part: values in, values out. Thread rule: one thread.
class NetworkTrial {
 public:
  /// Messages, each with the host to which it goes.
  using Messages = std::vector<std::pair<std::size_t, Message>>;

  /// `named`: the user's --network-interfaces; empty: found by trying. `nonce` is random.
  NetworkTrial(const std::vector<std::string>& hosts, std::vector<std::string> named,
               std::uint64_t nonce);

  /// To be sent first.
  Messages start() const;
  /// An agent's answer, and what to send upon it.
  Messages on(std::size_t host, const NetworkTold& told);
  Messages on(std::size_t host, const NetworkTried& tried);
  /// Makes the choice from what there is: nothing more will come, some 2 s after start().
  Messages give_up();

  /// The choice, or what is wrong with the user's names or a host. Nothing before it is known.
  const std::optional<tl::expected<NetworkChoice, std::string>>& result() const { return result_; }
  /// Whether every host has told its addresses, of which it may have none any more.
  bool all_told() const { return all_told_; }
  /// The pairs of hosts whose `addresses`, by host, have reached one another; after result().
  std::set<std::pair<std::size_t, std::size_t>> joined(
      const std::vector<IpAddress>& addresses) const;

 private:
  Messages compare();
  Messages conclude(tl::expected<NetworkChoice, std::string> result);
  void await_all();

  std::vector<HostNetwork> hosts_;
  std::vector<std::string> named_;
  std::uint64_t nonce_;
  bool all_told_ = false;
  Reachability reachability_;
  std::set<std::size_t> silent_;  ///< hosts that have not told, then those that have not tried yet
  std::optional<tl::expected<NetworkChoice, std::string>> result_;
};

}  // namespace hora::launch
