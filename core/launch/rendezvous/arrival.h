/// The side of a node that joins node 0 at a rendezvous.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/rendezvous/rendezvous.h"
#include "core/launch/rendezvous/sockets.h"

namespace hora::launch {

/// Where node 0 may be at this moment, and the token of its rendezvous.
struct MeetingPoint {
  std::vector<Endpoint> endpoints;
  std::string name;  ///< as messages name it: "tcp://a:29500"
};

/// Connects to node 0, again and again until it is there, and waits with it for the others.
/// Thread rule: one thread.
class Arrival {
 public:
  /// Where node 0 is; the error says why that is not known yet. Asked before each trial.
  using Find = std::function<tl::expected<MeetingPoint, std::string>()>;
  /// The token; asked after Find.
  using Token = std::function<tl::expected<const SecretKey*, std::string>()>;

  /// `may_change`: the token is node 0's own, so that a wrong one may be that of a former job, and
  /// is read again. The options outlive it.
  Arrival(const RendezvousOptions& options, Find find, Token token, bool may_change);
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  /// Once. Errors are meet()'s.
  NodesMet run();

 private:
  struct Conversation;

  /// Nothing where it has to be tried again; waits_for_ says why.
  std::optional<NodesMet> try_once();
  std::optional<NodesMet> talk(Conversation& conversation);
  /// Whether the bytes that the conversation wants next have come, instead of its end.
  bool await(Conversation& conversation);
  /// What a reply of node 0 says; nothing where this node waits on.
  std::optional<NodesMet> follow(Conversation& conversation);
  bool send(const Conversation& conversation, std::span<const std::byte> bytes);
  /// Says for whom, meanwhile.
  Waited wait_readable(int descriptor, Clock::time_point until);
  void report_if_due();
  [[noreturn]] void stopped() const;
  std::string self() const;
  Clock::time_point end_of_all() const { return started_ + options_.timeout; }

  const RendezvousOptions& options_;
  Find find_;
  Token token_;
  bool may_change_;
  std::string waits_for_ = "node 0";  ///< with why
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_report_;
};

}  // namespace hora::launch
