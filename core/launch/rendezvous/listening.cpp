#include "core/launch/rendezvous/listening.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace hora::launch {
namespace {

using Why = NotListening::Why;

tl::unexpected<NotListening> failed(Why why, std::string text) {
  return tl::unexpected(NotListening{why, std::move(text)});
}

/// A name that resolves to loopback on every host.
bool means_loopback(const std::string& host) {
  return host == "localhost" || parse_address(host).has_value();
}

/// Of bind(): this host does not have the address, or nothing of its family.
bool is_elsewhere(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
}

tl::unexpected<NotListening> failed_with(int error, const Endpoint& at) {
  if (error == EADDRINUSE) {
    return failed(Why::in_use,
                  "node 0 cannot listen at " + to_string(at) +
                      ": the port is in use on this host, by another job or by a second "
                      "node 0; end that, or choose another port");
  }
  return failed(
      error == EADDRNOTAVAIL ? Why::not_here : Why::other,
      "node 0 cannot listen at " + to_string(at) + ": " + std::generic_category().message(error));
}

tl::expected<Listening, NotListening> listen_at_own(const RendezvousOptions& options, int port,
                                                    std::string note) {
  const auto own = own_address(options.host, options.network_interfaces);
  if (!own) return failed(Why::other, own.error());
  const Endpoint at{*own, static_cast<std::uint16_t>(port)};
  auto listener = listen_at(at);
  if (!listener) return failed_with(listener.error(), at);
  if (!note.empty()) note += "; node 0 listens at " + to_string(listener->at);
  return Listening{std::move(*listener), std::move(note)};
}

}  // namespace

tl::expected<Listening, NotListening> listen_for(const RendezvousOptions& options,
                                                 bool only_named) {
  const RendezvousPlace& place = options.place;
  const auto addresses = resolve(place.host);
  if (!addresses) {
    if (only_named) return failed(Why::not_here, addresses.error());
    return listen_at_own(options, place.port, addresses.error());
  }
  for (const IpAddress& address : *addresses) {
    if (address.is_unspecified()) {
      return failed(Why::other, to_url(place) +
                                    " names no single address; name the one of node 0 that the "
                                    "other nodes reach");
    }
    if (address.is_loopback() && !means_loopback(place.host)) {
      return listen_at_own(options, place.port,
                           "the name " + place.host + " is " + to_string(address) +
                               " here, which other hosts do not reach");
    }
    const Endpoint at{address, static_cast<std::uint16_t>(place.port)};
    auto listener = listen_at(at);
    if (listener) return Listening{std::move(*listener), {}};
    if (!is_elsewhere(listener.error())) {
      return failed_with(listener.error(), at);
    }
  }
  const std::string elsewhere =
      place.host + " (" + to_string(addresses->front()) + ") is no address of this host";
  if (only_named) return failed(Why::not_here, elsewhere);
  return listen_at_own(options, place.port, elsewhere);
}

tl::expected<Listening, NotListening> listen_anywhere(const RendezvousOptions& options) {
  return listen_at_own(options, 0, {});
}

tl::expected<std::vector<Endpoint>, std::string> endpoints_of(const RendezvousOptions& options) {
  const RendezvousPlace& place = options.place;
  const auto addresses = resolve(place.host);
  if (!addresses) return tl::unexpected(addresses.error());
  const auto port = static_cast<std::uint16_t>(place.port);
  std::vector<Endpoint> endpoints;
  for (const IpAddress& address : *addresses) endpoints.push_back({address, port});
  if (std::ranges::any_of(*addresses, &IpAddress::is_loopback) && !means_loopback(place.host)) {
    const auto own = own_address(options.host, options.network_interfaces);
    if (own) endpoints.push_back({*own, port});
  }
  return endpoints;
}

}  // namespace hora::launch
