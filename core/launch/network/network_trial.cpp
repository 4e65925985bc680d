#include "core/launch/network/network_trial.h"

#include <hora/printable.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/launch/network/choice.h"

namespace hora::launch {
namespace {

constexpr std::size_t kLongestName = 64;  // of interfaces: IFNAMSIZ is 16

tl::unexpected<std::string> refused(std::string why) {
  return tl::unexpected(std::move(why));
}

tl::expected<Interface, std::string> from_wire(const wire::NetworkInterfaceT& told) {
  Interface interface;
  interface.name = printable(told.name, kLongestName);
  interface.up = told.up;
  interface.running = told.running;
  interface.loopback = told.loopback;
  interface.hardware = told.hardware;
  interface.mtu = std::max(told.mtu, 0);
  interface.speed = std::max(told.speed, 0);
  if (told.addresses.size() != told.prefixes.size()) {
    return refused("an interface's addresses and prefixes differ in number");
  }
  for (std::size_t i = 0; i < told.addresses.size(); ++i) {
    const auto address = parse_address(told.addresses[i]);
    const int prefix = told.prefixes[i];
    if (!address || prefix < 0 || prefix > address->bits()) {
      return refused("an interface's address is none");
    }
    interface.addresses.push_back({*address, prefix});
  }
  return interface;
}

}  // namespace

NetworkTold to_message(const HostNetwork& network, const std::vector<ProbeEndpoint>& endpoints) {
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
  for (const ProbeEndpoint& endpoint : endpoints) told.ports.push_back(endpoint.port);
  return told;
}

TryNetwork to_message(const std::vector<ProbePeer>& peers) {
  TryNetwork request;
  for (const ProbePeer& peer : peers) {
    auto entry = std::make_unique<wire::NetworkPeerT>();
    entry->host = static_cast<std::uint32_t>(peer.host);
    for (const ProbeEndpoint& endpoint : peer.endpoints) {
      entry->addresses.push_back(to_string(endpoint.address));
      entry->ports.push_back(endpoint.port);
    }
    request.peers.push_back(std::move(entry));
  }
  return request;
}

NetworkTried to_message(const std::vector<ProbePair>& pairs) {
  NetworkTried tried;
  for (const ProbePair& pair : pairs) {
    tried.candidates.push_back(static_cast<std::uint32_t>(pair.candidate));
    tried.peers.push_back(static_cast<std::uint32_t>(pair.peer));
    tried.peer_candidates.push_back(static_cast<std::uint32_t>(pair.peer_candidate));
  }
  return tried;
}

tl::expected<ToldNetwork, std::string> from_message(const NetworkTold& told,
                                                    const std::string& host) {
  ToldNetwork result{{host, told.stack, {}}, {}};
  for (const auto& entry : told.interfaces) {
    auto interface = from_wire(*entry);
    if (!interface) return refused(interface.error());
    result.network.interfaces.push_back(std::move(*interface));
  }
  const std::vector<Candidate> candidates = candidates_of(result.network);
  if (told.ports.size() != candidates.size()) {
    return refused("it names " + std::to_string(told.ports.size()) + " ports for " +
                   std::to_string(candidates.size()) + " addresses");
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    result.endpoints.push_back({candidates[i].address, told.ports[i]});
  }
  return result;
}

tl::expected<std::vector<ProbePeer>, std::string> from_message(const TryNetwork& request) {
  std::vector<ProbePeer> peers;
  for (const auto& entry : request.peers) {
    ProbePeer peer{entry->host, {}};
    if (entry->addresses.size() != entry->ports.size()) {
      return refused("a host's addresses and ports differ in number");
    }
    for (std::size_t i = 0; i < entry->addresses.size(); ++i) {
      const auto address = parse_address(entry->addresses[i]);
      if (!address) return refused("a host's address is none");
      peer.endpoints.push_back({*address, entry->ports[i]});
    }
    peers.push_back(std::move(peer));
  }
  return peers;
}

tl::expected<std::vector<ProbePair>, std::string> from_message(const NetworkTried& tried) {
  if (tried.candidates.size() != tried.peers.size() ||
      tried.candidates.size() != tried.peer_candidates.size()) {
    return refused("the parts of its pairs differ in number");
  }
  std::vector<ProbePair> pairs;
  for (std::size_t i = 0; i < tried.candidates.size(); ++i) {
    pairs.push_back({tried.candidates[i], tried.peers[i], tried.peer_candidates[i]});
  }
  return pairs;
}

tl::expected<ProbeNonce, std::string> nonce_of(const TellNetwork& request) {
  ProbeNonce nonce;
  if (request.nonce.size() != nonce.size()) return refused("its nonce has another length");
  std::ranges::transform(request.nonce, nonce.begin(),
                         [](std::uint8_t byte) { return static_cast<std::byte>(byte); });
  return nonce;
}

NetworkTrial::NetworkTrial(std::vector<std::string> hosts, std::vector<std::string> named,
                           const ProbeNonce& nonce)
    : names_(std::move(hosts)),
      named_(std::move(named)),
      nonce_(nonce),
      told_(names_.size()),
      tried_(names_.size()) {}

NetworkTrial::Messages NetworkTrial::start() const {
  Messages messages;
  for (std::size_t host = 0; host < names_.size(); ++host) {
    TellNetwork request;
    request.host = static_cast<std::uint32_t>(host);
    for (const std::byte byte : nonce_)
      request.nonce.push_back(std::to_integer<std::uint8_t>(byte));
    messages.emplace_back(host, std::move(request));
  }
  return messages;
}

NetworkTrial::Messages NetworkTrial::on(std::size_t host, const NetworkTold& told) {
  if (result_ || told_.at(host)) return {};
  auto read = from_message(told, names_[host]);
  if (!read) {
    return conclude(tl::unexpected("host " + names_[host] +
                                   " has told its network interfaces wrongly: " + read.error()));
  }
  told_[host] = std::move(*read);
  const bool all = std::ranges::all_of(told_, [](const auto& each) { return each.has_value(); });
  return all ? compare() : Messages();
}

NetworkTrial::Messages NetworkTrial::compare() {
  for (const auto& told : told_) hosts_.push_back(told->network);
  if (!named_.empty()) return conclude(choose_named(hosts_, named_));
  const bool one_machine = std::ranges::all_of(
      hosts_, [&](const HostNetwork& host) { return host.stack == hosts_.front().stack; });
  if (one_machine) return conclude(choose_network(hosts_, {}));
  Messages messages;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    std::vector<ProbePeer> peers;
    for (const std::size_t peer : probe_partners(host, hosts_.size())) {
      peers.push_back({peer, told_[peer]->endpoints});
    }
    messages.emplace_back(host, to_message(peers));
  }
  return messages;
}

NetworkTrial::Messages NetworkTrial::on(std::size_t host, const NetworkTried& tried) {
  if (result_ || hosts_.empty()) return {};
  tried_.at(host) = from_message(tried).value_or(std::vector<ProbePair>());
  const bool all = std::ranges::all_of(tried_, [](const auto& each) { return each.has_value(); });
  return all ? give_up() : Messages();
}

NetworkTrial::Messages NetworkTrial::give_up() {
  if (result_) return {};
  if (hosts_.empty()) {
    std::string silent;
    for (std::size_t host = 0; host < names_.size(); ++host) {
      if (!told_[host]) silent += (silent.empty() ? "" : ", ") + names_[host];
    }
    return conclude(tl::unexpected("no network interfaces were told by " + silent));
  }
  std::vector<std::vector<ProbePair>> results;
  for (const auto& tried : tried_) results.push_back(tried.value_or(std::vector<ProbePair>()));
  NetworkChoice choice = choose_network(hosts_, merge(results, hosts_));
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
    for (const ProbePair& pair : tried_[host].value_or(std::vector<ProbePair>())) {
      if (pair.peer < hosts_.size() && has(host, pair.candidate) &&
          has(pair.peer, pair.peer_candidate)) {
        pairs.insert(std::minmax(host, pair.peer));
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

AgentNetwork::AgentNetwork(EventLoop& loop, std::function<void(const Message&)> send)
    : loop_(loop), send_(std::move(send)) {}

AgentNetwork::~AgentNetwork() {
  forget();
}

void AgentNetwork::forget() {
  if (!probe_) return;
  for (const int descriptor : probe_->fds()) loop_.forget(descriptor);
  probe_.reset();
}

void AgentNetwork::on(const TellNetwork& request) {
  const auto nonce = nonce_of(request);
  if (!nonce) return;
  forget();
  const HostNetwork network{{}, this_network_stack(), this_host_interfaces()};
  std::vector<IpAddress> addresses;
  for (const Candidate& candidate : candidates_of(network)) addresses.push_back(candidate.address);
  probe_.emplace(request.host, *nonce, addresses);
  answered_ = false;
  send_(to_message(network, probe_->endpoints()));
}

void AgentNetwork::on(const TryNetwork& request) {
  auto peers = from_message(request);
  if (!probe_ || !peers) return;
  if (peers->empty()) return forget();
  if (!probe_->fds().empty() || answered_) return;  // it has been started
  probe_->start(std::move(*peers), Clock::now());
  for (const int descriptor : probe_->fds()) {
    loop_.watch(descriptor, POLLIN, [this, descriptor](short) {
      probe_->on_readable(descriptor, Clock::now());
      answer_if_done();
    });
  }
  answer_if_done();
}

void AgentNetwork::on_time(Clock::time_point now) {
  if (!probe_) return;
  if (probe_->next_timer() && now >= *probe_->next_timer()) probe_->on_timer(now);
  answer_if_done();
}

void AgentNetwork::answer_if_done() {
  if (answered_ || !probe_->done()) return;
  answered_ = true;
  send_(to_message(probe_->result()));
}

}  // namespace hora::launch
