#include "core/launch/network/network_trial.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/printable.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kRound = 100ms;          ///< between two times that an unanswered question is asked
constexpr auto kShortestTrial = 200ms;  ///< in which not all is answered
constexpr auto kQuiet = 150ms;          ///< without a new answer
constexpr int kMostDatagrams = 256;     ///< read before other descriptors have their turn
constexpr std::size_t kLongestInterface = 64;  ///< of a name: IFNAMSIZ is 16

}  // namespace

/// All hosts of a job have one architecture.
struct Probe::Datagram {
  std::array<char, 4> magic{'h', 'p', 'r', 'b'};
  std::uint32_t is_answer = 0;
  std::uint64_t nonce = 0;
  std::uint32_t from_host = 0, from_candidate = 0, to_host = 0, to_candidate = 0;
};

Probe::Probe(EventLoop& loop, std::size_t host, std::uint64_t nonce,
             std::span<const IpAddress> candidates)
    : loop_(loop), host_(host), nonce_(nonce) {
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

void Probe::start(std::vector<ProbePeer> peers, Clock::time_point now) {
  peers_ = std::move(peers);
  for (std::size_t from = 0; from < sockets_.size(); ++from) {
    if (!sockets_[from].descriptor) continue;
    loop_.watch(sockets_[from].descriptor.get(), POLLIN,
                [this, from](short) { on_readable(from); });
    for (const ProbePeer& peer : peers_) {
      for (std::size_t to = 0; to < peer.endpoints.size(); ++to) {
        const Endpoint& endpoint = peer.endpoints[to];
        if (endpoint.port == 0 || endpoint.address.family != sockets_[from].at.address.family) {
          continue;
        }
        questions_.push_back(
            {ProbePair(static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(peer.host),
                       static_cast<std::uint32_t>(to)),
             endpoint});
      }
    }
  }
  started_ = next_round_ = last_answer_ = now;
  on_time(now);
}

void Probe::on_time(Clock::time_point now) {
  if (!started_ || now < next_round_ || result(now)) return;
  next_round_ = now + kRound;
  for (const Question& question : questions_) {
    if (question.answered) continue;
    const ProbePair& pair = question.pair;
    send({.nonce = nonce_,
          .from_host = static_cast<std::uint32_t>(host_),
          .from_candidate = pair.candidate(),
          .to_host = pair.peer(),
          .to_candidate = pair.peer_candidate()},
         pair.candidate(), question.to);
  }
}

/// A datagram that cannot be sent counts as one that is lost.
void Probe::send(const Datagram& datagram, std::size_t candidate, const Endpoint& to) const {
  const SocketAddress address(to.address, to.port);
  static_cast<void>(::sendto(sockets_[candidate].descriptor.get(), &datagram, sizeof datagram,
                             MSG_DONTWAIT | MSG_NOSIGNAL, address.get(), address.length));
}

void Probe::on_readable(std::size_t candidate) {
  for (int i = 0; i < kMostDatagrams; ++i) {
    std::array<std::byte, sizeof(Datagram) + 1> bytes;  // longer ones show by their length
    SocketAddress from;
    const ssize_t count = ::recvfrom(sockets_[candidate].descriptor.get(), bytes.data(),
                                     bytes.size(), MSG_DONTWAIT, from.get(), &from.length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    const auto address = from.address();
    if (!address || count != sizeof(Datagram)) continue;
    Datagram datagram;
    std::memcpy(&datagram, bytes.data(), sizeof datagram);
    on_datagram(datagram, candidate, {*address, from.port()});
  }
}

void Probe::on_datagram(const Datagram& datagram, std::size_t candidate, const Endpoint& from) {
  if (datagram.magic != Datagram().magic || datagram.nonce != nonce_ || datagram.is_answer > 1 ||
      datagram.to_host != host_ || datagram.to_candidate != candidate) {
    return;
  }
  const auto peer = std::ranges::find(peers_, datagram.from_host, &ProbePeer::host);
  if (peer == peers_.end() || datagram.from_candidate >= peer->endpoints.size() ||
      peer->endpoints[datagram.from_candidate] != from) {
    return;
  }
  if (datagram.is_answer == 0) {
    return send({.is_answer = 1,
                 .nonce = nonce_,
                 .from_host = datagram.to_host,
                 .from_candidate = datagram.to_candidate,
                 .to_host = datagram.from_host,
                 .to_candidate = datagram.from_candidate},
                candidate, from);
  }
  for (Question& question : questions_) {
    const ProbePair& pair = question.pair;
    if (question.answered || pair.candidate() != candidate || pair.peer() != datagram.from_host ||
        pair.peer_candidate() != datagram.from_candidate) {
      continue;
    }
    question.answered = true;
    last_answer_ = Clock::now();
  }
}

std::optional<std::vector<ProbePair>> Probe::result(Clock::time_point now) const {
  if (!started_) return std::nullopt;
  const auto answered_by = [&](const ProbePeer& peer) {
    return std::ranges::any_of(questions_, [&](const Question& question) {
      return question.answered && question.pair.peer() == peer.host;
    });
  };
  const bool quiet = now >= *started_ + kShortestTrial && now >= last_answer_ + kQuiet;
  if (!std::ranges::all_of(questions_, &Question::answered) && now < *started_ + kLongest &&
      !(quiet && std::ranges::all_of(peers_, answered_by))) {
    return std::nullopt;
  }
  std::vector<ProbePair> pairs;
  for (const Question& question : questions_) {
    if (question.answered) pairs.push_back(question.pair);
  }
  return pairs;
}

Reachability merge(std::span<const std::vector<ProbePair>> results,
                   std::span<const HostNetwork> hosts) {
  std::vector<std::size_t> candidates;
  for (const HostNetwork& host : hosts) candidates.push_back(candidates_of(host).size());
  Reachability reachability;
  for (std::size_t host = 0; host < std::min(results.size(), hosts.size()); ++host) {
    for (const ProbePair& pair : results[host]) {
      if (pair.peer() < hosts.size() && pair.peer() != host &&
          pair.candidate() < candidates[host] && pair.peer_candidate() < candidates[pair.peer()]) {
        reachability.add(host, pair.candidate(), pair.peer(), pair.peer_candidate());
      }
    }
  }
  return reachability;
}

NetworkTold to_message(const HostNetwork& network, const std::vector<Endpoint>& endpoints) {
  NetworkTold told;
  told.stack = network.stack;
  for (const Interface& interface : network.interfaces) {
    auto entry = std::make_unique<wire::NetworkInterfaceT>();
    entry->name = interface.name;
    entry->up = interface.up;
    entry->running = interface.running;
    entry->loopback = interface.loopback;
    entry->hardware = interface.hardware;
    entry->mtu = interface.mtu;
    entry->speed = interface.speed;
    for (const InterfaceAddress& at : interface.addresses) {
      entry->addresses.push_back(to_string(at.address));
      entry->prefixes.push_back(at.prefix);
    }
    told.interfaces.push_back(std::move(entry));
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
            .running = entry->running,
            .loopback = entry->loopback,
            .hardware = entry->hardware,
            .mtu = std::max(entry->mtu, 0),
            .speed = std::max(entry->speed, 0),
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
  NetworkChoice choice = choose_network(hosts_, merge(tried_, hosts_));
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
  probe_->start(std::move(peers), Clock::now());
}

void AgentNetwork::on_time(Clock::time_point now) {
  if (!probe_ || answered_) return;
  probe_->on_time(now);
  auto pairs = probe_->result(now);
  if (!pairs) return;
  answered_ = true;
  NetworkTried tried;
  tried.pairs = std::move(*pairs);
  send_(tried);
}

}  // namespace hora::launch
