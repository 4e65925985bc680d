#include "core/launch/network/told_network.h"

#include <hora/printable.h>

#include <algorithm>
#include <memory>
#include <utility>

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

}  // namespace hora::launch
