/// Where node 0 listens: the only listening socket of a launcher, at one address.
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "core/launch/rendezvous/rendezvous.h"
#include "core/launch/rendezvous/sockets.h"

namespace hora::launch {

struct Listening {
  Listener listener;
  /// Where it is not the address that the user named: why, as a line to print.
  std::string note;
};

struct NotListening {
  enum class Why { in_use, not_here, other };
  Why why = Why::other;
  std::string text;
};

/// At tcp://HOST:PORT. HOST need not be this host's own name: where it does not resolve, is no
/// address of this host (a service's address before a container), or, being a name, resolves to
/// loopback (as a host's own name does on Debian), the socket is bound to own_address(). With
/// `only_named`, that is left out but for loopback: the host that has the address is node 0.
tl::expected<Listening, NotListening> listen_for(const RendezvousOptions& options, bool only_named);

/// At any port of own_address().
tl::expected<Listening, NotListening> listen_anywhere(const RendezvousOptions& options);

/// Where a node connects to node 0 at tcp://HOST:PORT, in the order to try; with own_address()
/// after a name's loopback addresses, as listen_for() does.
tl::expected<std::vector<Endpoint>, std::string> endpoints_of(const RendezvousOptions& options);

}  // namespace hora::launch
