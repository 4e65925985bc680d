/// Sockets of a rendezvous: all non-blocking and close-on-exec. A function that waits ends early
/// where the user wants to stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/unique_fd.h"
#include "core/launch/network/address.h"

namespace hora::launch {

/// A place to connect to.
struct Endpoint {
  IpAddress address;
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
};
std::string to_string(const Endpoint& endpoint);

/// The addresses of a name, each once, in the system's order; at least one. May take as long as the
/// system's resolver does. The error says why there are none.
tl::expected<std::vector<IpAddress>, std::string> resolve(const std::string& host);

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

enum class Waited { ready, timeout, stopped };
/// Until `descriptor` has one of poll()'s `events`, or `stop` (-1: none) is readable.
Waited wait_for(int descriptor, short events, int stop, Clock::time_point until);

/// A connection, or errno; ETIMEDOUT at `until`, ECANCELED where `stop` became readable.
tl::expected<UniqueFd, int> connect_to(const Endpoint& to, int stop, Clock::time_point until);

/// Sends all, waiting where the other side reads slowly. False where it cannot until then.
bool send_all(int descriptor, std::span<const std::byte> bytes, Clock::time_point until);

/// Collects exactly as many bytes as are asked for, and takes no more out of the connection.
class ExactReader {
 public:
  enum class State { complete, pending, ended };

  /// Does not wait. `wants` stays the same until complete; then bytes() holds them until the next
  /// call.
  State read(int descriptor, std::size_t wants);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t read_ = 0;
};

/// The address under which other hosts most likely reach this one: of the named interfaces, where
/// `named` is not empty (choose_named()); else that by which the route to other networks leads;
/// else of the fastest hardware; else 127.0.0.1. The error is choose_named()'s.
tl::expected<IpAddress, std::string> own_address(const std::string& host,
                                                 std::span<const std::string> named);

}  // namespace hora::launch
