/// How launcher and agents find out which networks join a job's hosts: the launcher asks all agents
/// for their interfaces, has them tried where that is needed, and chooses (NetworkTrial, values in,
/// values out); an agent tells its host's, and tries them (AgentNetwork, Probe).
#pragma once

#include <chrono>
#include <cstddef>
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
#include "core/launch/network/interfaces.h"

namespace hora::launch {

/// A host to ask, by its index, and its endpoints in the order of its candidates; port 0 where the
/// host could not bind one.
struct ProbePeer {
  std::size_t host = 0;
  std::vector<Endpoint> endpoints;
};

/// From `candidate` of this host a question went to a peer's, and its answer came.
using ProbePair = wire::NetworkPair;

/// Finds out, without a listening socket, which addresses of this host and of others reach each
/// other.
///
/// Each host binds a short-lived UDP socket to each of its candidate addresses and tells the
/// launcher the ports, over the connection that both have anyway. Then each asks all addresses of
/// its partners (probe_partners); a host that is asked answers. A question and its answer hold the
/// job's nonce and both ends' host and candidate, and must come from exactly the address and port
/// that the launcher has told: an address that exists on several hosts (docker0's) answers for no
/// other host than its own. After its result a probe still answers others, so it is kept until
/// every host is done. Thread rule: that of the loop.
class Probe {
 public:
  static constexpr std::chrono::milliseconds kLongest{1000};

  /// Binds the candidates; one that cannot be bound is left out of the trial. `nonce` is random, of
  /// one start of one job. The loop outlives the probe.
  Probe(EventLoop& loop, std::size_t host, std::uint64_t nonce,
        std::span<const IpAddress> candidates);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  /// By candidate: what the launcher tells the other hosts.
  std::vector<Endpoint> endpoints() const;
  /// Asks these for the first time. What came earlier waits in the sockets. Once.
  void start(std::vector<ProbePeer> peers, Clock::time_point now);
  bool started() const { return started_.has_value(); }
  /// Called at least ten times a second. Asks again.
  void on_time(Clock::time_point now);

  /// The pairs that were answered, when all were; or each peer has answered one, and no more
  /// answers have come for a while; or kLongest is over.
  std::optional<std::vector<ProbePair>> result(Clock::time_point now) const;

 private:
  struct Socket {
    Endpoint at;
    UniqueFd descriptor;
  };
  struct Question {
    ProbePair pair;
    Endpoint to;
    bool answered = false;
  };
  struct Datagram;

  void on_readable(std::size_t candidate);
  void on_datagram(const Datagram& datagram, std::size_t candidate, const Endpoint& from);
  void send(const Datagram& datagram, std::size_t candidate, const Endpoint& to) const;

  EventLoop& loop_;
  std::size_t host_;
  std::uint64_t nonce_;
  std::vector<Socket> sockets_;
  std::vector<ProbePeer> peers_;
  std::vector<Question> questions_;
  std::optional<Clock::time_point> started_;
  Clock::time_point next_round_, last_answer_;
};

/// The results of all hosts, by host. Pairs that name no partner or no candidate are left out.
Reachability merge(std::span<const std::vector<ProbePair>> results,
                   std::span<const HostNetwork> hosts);

/// An agent's part: its host's network as a message. Errors of from_message() say what is wrong
/// with a message from another process.
NetworkTold to_message(const HostNetwork& network, const std::vector<Endpoint>& endpoints);
struct ToldNetwork {
  HostNetwork network;
  std::vector<Endpoint> endpoints;  ///< of candidates_of(network)
};
tl::expected<ToldNetwork, std::string> from_message(const NetworkTold& told,
                                                    const std::string& host);

/// The launcher's part. Thread rule: one thread.
class NetworkTrial {
 public:
  /// Messages, each with the host to which it goes.
  using Messages = std::vector<std::pair<std::size_t, Message>>;

  /// `named`: the user's --network-interfaces; empty: found by trying. `nonce` is random.
  NetworkTrial(std::vector<std::string> hosts, std::vector<std::string> named, std::uint64_t nonce);

  /// To be sent first.
  Messages start() const;
  /// An agent's answer, and what to send upon it.
  Messages on(std::size_t host, const NetworkTold& told);
  Messages on(std::size_t host, const NetworkTried& tried);
  /// Makes the choice from what there is: nothing more will come, some 2 s after start().
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
  std::uint64_t nonce_;
  std::vector<std::optional<ToldNetwork>> told_;
  std::vector<std::vector<ProbePair>> tried_;  ///< by host
  std::set<std::size_t> silent_;               ///< those that have not tried yet
  std::vector<HostNetwork> hosts_;             ///< when all have told theirs
  std::optional<tl::expected<NetworkChoice, std::string>> result_;
};

/// An agent's part. Thread rule: one thread, that of the loop.
class AgentNetwork {
 public:
  /// `send` takes the answers. The loop outlives it.
  AgentNetwork(EventLoop& loop, std::function<void(const Message&)> send)
      : loop_(loop), send_(std::move(send)) {}

  /// Messages that are none of a launcher are ignored.
  void on(const TellNetwork& request);
  void on(const TryNetwork& request);
  /// Called at least ten times a second.
  void on_time(Clock::time_point now);

 private:
  EventLoop& loop_;
  std::function<void(const Message&)> send_;
  std::optional<Probe> probe_;
  bool answered_ = false;
};

}  // namespace hora::launch
