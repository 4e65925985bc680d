/// How launcher and agents find out which networks join a job's hosts: the launcher asks all agents
/// for their interfaces, has them tried where that is needed, and chooses (NetworkTrial, values in,
/// values out); an agent tells its host's, and tries them (AgentNetwork); a host's network and the
/// trial of it as messages between the two.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/messages.h"
#include "core/launch/network/choice.h"
#include "core/launch/network/interfaces.h"
#include "core/launch/network/probe.h"

namespace hora::launch {

/// `ports`: where each of candidates_of(network) is asked.
NetworkTold to_message(const HostNetwork& network, const std::vector<ProbeEndpoint>& endpoints);
TryNetwork to_message(const std::vector<ProbePeer>& peers);
NetworkTried to_message(const std::vector<ProbePair>& pairs);

struct ToldNetwork {
  HostNetwork network;
  std::vector<ProbeEndpoint> endpoints;  ///< of candidates_of(network)
};

/// Of messages from another process; an error says what is wrong with them.
tl::expected<ToldNetwork, std::string> from_message(const NetworkTold& told,
                                                    const std::string& host);
tl::expected<std::vector<ProbePeer>, std::string> from_message(const TryNetwork& request);
tl::expected<std::vector<ProbePair>, std::string> from_message(const NetworkTried& tried);
/// 16 bytes.
tl::expected<ProbeNonce, std::string> nonce_of(const TellNetwork& request);

/// The launcher's part. Thread rule: one thread.
class NetworkTrial {
 public:
  /// Messages, each with the host to which it goes.
  using Messages = std::vector<std::pair<std::size_t, Message>>;

  /// `named`: the user's --network-interfaces; empty: found by trying. `nonce` is random.
  NetworkTrial(std::vector<std::string> hosts, std::vector<std::string> named,
               const ProbeNonce& nonce);

  /// To be sent first.
  Messages start() const;
  /// An agent's answer, and what to send upon it.
  Messages on(std::size_t host, const NetworkTold& told);
  Messages on(std::size_t host, const NetworkTried& tried);
  /// What is missing will not come, some 2 s after start(): the choice is made from what there is.
  Messages give_up();

  /// The choice, or what is wrong: with the user's names, or that a host has not told its
  /// interfaces. Nothing before it is known.
  const std::optional<tl::expected<NetworkChoice, std::string>>& result() const { return result_; }
  /// Whether every host has told its interfaces, of which it may have none any more.
  bool all_told() const { return !hosts_.empty(); }
  /// The pairs of hosts whose `addresses`, by host, have answered one another; after result().
  std::set<std::pair<std::size_t, std::size_t>> joined(
      const std::vector<IpAddress>& addresses) const;

 private:
  Messages compare();
  Messages conclude(tl::expected<NetworkChoice, std::string> result);

  std::vector<std::string> names_, named_;
  ProbeNonce nonce_;
  std::vector<std::optional<ToldNetwork>> told_;
  std::vector<std::optional<std::vector<ProbePair>>> tried_;
  std::vector<HostNetwork> hosts_;  ///< when all have told theirs
  std::optional<tl::expected<NetworkChoice, std::string>> result_;
};

/// An agent's part. Thread rule: one thread, that of the loop.
class AgentNetwork {
 public:
  /// `send` takes the answers. The loop outlives it.
  AgentNetwork(EventLoop& loop, std::function<void(const Message&)> send);
  ~AgentNetwork();
  AgentNetwork(const AgentNetwork&) = delete;
  AgentNetwork& operator=(const AgentNetwork&) = delete;

  /// Messages that are none of a launcher are ignored.
  void on(const TellNetwork& request);
  void on(const TryNetwork& request);
  /// Called at least ten times a second.
  void on_time(Clock::time_point now);

 private:
  void forget();
  void answer_if_done();

  EventLoop& loop_;
  std::function<void(const Message&)> send_;
  std::optional<Probe> probe_;
  bool answered_ = false;
};

}  // namespace hora::launch
