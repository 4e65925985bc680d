/// How the other nodes of a rendezvous find node 0, and the sockets with which they meet: all
/// non-blocking and close-on-exec.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/secret.h"
#include "core/launch/network/network.h"
#include "core/launch/rendezvous/rendezvous.h"

namespace hora::launch {

/// A listening socket at `wanted` (port 0: any) and where it listens, or errno.
struct Listener {
  UniqueFd descriptor;
  Endpoint at;
};
tl::expected<Listener, int> listen_at(const Endpoint& wanted);

/// The next connection and its other end; nothing where none waits.
struct Accepted {
  UniqueFd descriptor;
  Endpoint from;
};
std::optional<Accepted> accept_from(const Listener& listener);

/// A connection, or errno; ETIMEDOUT at `until`, ECANCELED where `stop` (-1: none) became readable.
tl::expected<UniqueFd, int> connect_to(const Endpoint& to, int stop, Clock::time_point until);

/// The address under which other hosts most likely reach this one: of the named interfaces, where
/// `named` is not empty (choose_named()); else that by which the route to other networks leads;
/// else of the fastest hardware; else 127.0.0.1. The error is choose_named()'s.
tl::expected<IpAddress, std::string> own_address(const std::string& host,
                                                 std::span<const std::string> named);

/// Where node 0 tells the others how to reach it. Thread rule: one thread.
class Store {
 public:
  virtual ~Store() = default;

  /// Makes this process node 0, which listens from now on; nothing where another is. Throws
  /// Error(invalid_argument) where it cannot be.
  virtual std::optional<Listener> claim() = 0;
  /// Where node 0 listens, in the order to try; the error says why that is not known yet.
  virtual tl::expected<std::vector<Endpoint>, std::string> find() = 0;
  /// The token, after claim() or find(); valid until the next call.
  virtual tl::expected<const SecretKey*, std::string> token() = 0;
  /// Whether node 0 has made it, so that a wrong one may be that of a former job.
  virtual bool token_may_change() const = 0;
};

/// The store that options.place names:
///
/// tcp://HOST:PORT: node 0 listens there. HOST need not be its own name: where it does not resolve,
/// is no address of this host (a service's address before a container), or, being a name, resolves
/// to loopback (as a host's own name does on Debian), the socket is bound to own_address(). Where
/// nodes have no ranks, the one that has the address (or loopback) is node 0.
///
/// file:///DIR: node 0 listens at any port of own_address(), and the nodes share a folder:
/// DIR/<job>.lock        node 0 holds a lock on it (flock), so that there is one node 0
/// DIR/<job>.rendezvous  its address, port and host; nothing secret
/// DIR/<job>.token       a token made by node 0, where none is given and DIR is the user's alone
/// (0700)
/// All are of mode 0600, and are gone when the nodes have met or node 0 ends.
///
/// The options outlive it. Throws Error(invalid_argument) where the token cannot be used.
std::unique_ptr<Store> make_store(const RendezvousOptions& options, const char* token_variable);

}  // namespace hora::launch
