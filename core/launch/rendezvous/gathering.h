/// Node 0's side of a rendezvous.
#pragma once

#include <hora/error.h>

#include <list>
#include <map>
#include <string>

#include "core/launch/rendezvous/admission.h"
#include "core/launch/rendezvous/rendezvous.h"
#include "core/launch/rendezvous/roster.h"
#include "core/launch/rendezvous/sockets.h"

namespace hora::launch {

/// Waits for the other nodes. Who has not proved the token has one of 16 connections, and of 4
/// from one address, 44 bytes of memory (4 KiB from then on) and 5 s. Thread rule: one thread.
class Gathering {
 public:
  /// All outlive it.
  Gathering(const RendezvousOptions& options, const SecretKey& token, const Listener& listener);
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  /// Once. Errors are meet()'s.
  NodesMet run();

 private:
  /// A connection that has not yet said which node it is.
  struct Stranger {
    Stranger(const SecretKey& token, Accepted accepted, Clock::time_point now)
        : connection(std::move(accepted.descriptor)),
          from(accepted.from),
          since(now),
          admission(token) {}

    UniqueFd connection;
    Endpoint from;
    Clock::time_point since;
    Admission admission;
    ExactReader reader;
  };
  struct Present {
    UniqueFd connection;
    SealPair seals;
    std::string name;  ///< "node 2 (host b, 10.0.0.2)"
  };
  using Strangers = std::list<Stranger>;

  void turn();
  Clock::time_point next_timer() const;
  void on_timer(Clock::time_point now);
  void accept_strangers(Clock::time_point now);
  /// Whether it stays a stranger.
  bool advance(Stranger& stranger);
  void admit(Stranger& stranger);
  void refuse(const Stranger& stranger, const std::string& why);
  void drop(Roster::Ticket ticket, const std::string& why);
  void report();
  void send(Present& node, const JoinReply& reply) const;
  NodesMet go();
  /// Tells all nodes why, and throws it.
  [[noreturn]] void end(ErrorCode code, const std::string& why);
  void say(const std::string& line) const;

  const RendezvousOptions& options_;
  const SecretKey& token_;
  const Listener& listener_;
  Roster roster_;
  Strangers strangers_;
  std::map<Roster::Ticket, Present> present_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_report_;
  int refusals_ = 0;
  std::string last_refusal_;
};

/// "12 s of 300 s".
std::string elapsed_text(Clock::time_point since, std::chrono::milliseconds limit);
/// What this node tells of itself.
JoinRequest request_of(const RendezvousOptions& options);

}  // namespace hora::launch
