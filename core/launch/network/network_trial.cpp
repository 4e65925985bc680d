#include "core/launch/network/network_trial.h"

#include <algorithm>

#include "core/launch/network/named_interfaces.h"

namespace hora::launch {

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
  return conclude(choose_network(hosts_, merge(results, hosts_)));
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
