/// Finds out, without a listening socket, which addresses of this host and of others reach each
/// other.
///
/// Each host binds a short-lived UDP socket to each of its candidate addresses and tells the
/// launcher the ports, over the connection that both have anyway. Then each asks all addresses of
/// its partners (probe_partners); a host that is asked answers. A question and its answer hold the
/// job's nonce and both ends' host and candidate, and must come from exactly the address and port
/// that the launcher has told: an address that exists on several hosts (docker0's) answers for no
/// other host than its own.
///
/// A datagram (33 bytes; numbers lowest byte first): "hprb", kind (0 question, 1 answer), nonce
/// (16), sender's host (u32) and candidate (u16), receiver's host (u32) and candidate (u16).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "core/launch/control/unique_fd.h"
#include "core/launch/network/interfaces.h"

namespace hora::launch {

/// Random, of one start of one job.
using ProbeNonce = std::array<std::byte, 16>;

/// Where a candidate is asked; port 0 where its host could not bind it.
struct ProbeEndpoint {
  IpAddress address;
  std::uint16_t port = 0;

  bool operator==(const ProbeEndpoint&) const = default;
};

/// A host to ask, by its index, and its endpoints in the order of its candidates.
struct ProbePeer {
  std::size_t host = 0;
  std::vector<ProbeEndpoint> endpoints;
};

/// From `candidate` of this host a question went to a peer's, and its answer came.
struct ProbePair {
  std::size_t candidate = 0;
  std::size_t peer = 0;
  std::size_t peer_candidate = 0;

  auto operator<=>(const ProbePair&) const = default;
};

/// Driven by an event loop: on_readable() where one of fds() is readable, on_timer() at
/// next_timer(). Neither waits. After done() it still answers others, so it is kept until every
/// host is done. Thread rule: one thread at a time.
class Probe {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLongest{1000};

  /// Binds the candidates; one that cannot be bound is left out of the trial.
  Probe(std::size_t host, const ProbeNonce& nonce, std::span<const IpAddress> candidates);

  /// By candidate: what the launcher tells the other hosts.
  std::vector<ProbeEndpoint> endpoints() const;

  /// Asks these for the first time. Once.
  void start(std::vector<ProbePeer> peers, Clock::time_point now);

  /// None before start(): what came earlier waits in the sockets.
  std::vector<int> fds() const;
  void on_readable(int fd, Clock::time_point now);
  void on_timer(Clock::time_point now);
  /// The time of the next on_timer(); nothing before start() and after done().
  std::optional<Clock::time_point> next_timer() const;

  /// All questions are answered; or each peer has answered one, and no more answers have come for a
  /// while; or kLongest is over.
  bool done() const { return done_; }
  /// Sorted. After done().
  std::vector<ProbePair> result() const;

 private:
  struct Socket {
    IpAddress address;
    std::uint16_t port = 0;
    UniqueFd descriptor;
  };
  struct Question {
    ProbePair pair;
    ProbeEndpoint to;
    bool answered = false;
  };

  void ask();
  void receive(std::size_t candidate, std::span<const std::byte> datagram,
               const ProbeEndpoint& from, Clock::time_point now);
  void conclude(Clock::time_point now);

  std::size_t host_;
  ProbeNonce nonce_;
  std::vector<Socket> sockets_;
  std::vector<ProbePeer> peers_;
  std::vector<Question> questions_;
  std::optional<Clock::time_point> started_;
  Clock::time_point next_round_;
  Clock::time_point last_answer_;
  bool done_ = false;
};

/// The results of all hosts, by host. Pairs that name no partner or no candidate are left out.
Reachability merge(std::span<const std::vector<ProbePair>> results,
                   std::span<const HostNetwork> hosts);

}  // namespace hora::launch
