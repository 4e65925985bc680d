#include <hora/printable.h>

#include <algorithm>
#include <string_view>

#include "core/launch/network/choice.h"

namespace hora::launch {
namespace {

/// One of the things named: a subnet, or the name of an interface.
struct Item {
  std::string text;
  std::optional<Subnet> subnet;

  bool names(const Interface& interface) const {
    if (!subnet) return interface.name == text;
    return std::ranges::any_of(interface.addresses, [&](const InterfaceAddress& at) {
      return subnet->contains(at.address);
    });
  }
  bool names(const Interface& interface, const IpAddress& address) const {
    return subnet ? subnet->contains(address) : interface.name == text;
  }
};

/// "--network-interfaces eth0,ens3".
std::string flag_with(std::span<const std::string> named) {
  std::string list;
  for (const std::string& text : named) list += (list.empty() ? "" : ",") + text;
  return "--network-interfaces " + printable(list);
}

tl::expected<std::vector<Item>, std::string> parse_items(std::span<const std::string> named) {
  std::vector<Item> items;
  for (const std::string& text : named) {
    Item item{text, parse_subnet(text)};
    const bool is_name = !text.empty() && text.find_first_of("/,") == std::string::npos;
    if (!item.subnet && !is_name) {
      return tl::unexpected(flag_with(named) + ": " + in_quotes(text) +
                            " is neither an interface's name nor a subnet such as 10.77.0.0/24");
    }
    items.push_back(std::move(item));
  }
  return items;
}

/// The addresses of `host` that the items name, IPv4 first: that is what peers use first.
std::vector<Candidate> named_of(const HostNetwork& host, std::span<const Item> items) {
  std::vector<Candidate> named;
  for (std::size_t i = 0; i < host.interfaces.size(); ++i) {
    const Interface& interface = host.interfaces[i];
    if (!interface.usable()) continue;
    for (const InterfaceAddress& at : interface.addresses) {
      if (at.address.family == Family::ipv6 && at.address.is_link_local()) continue;
      const bool is_named = std::ranges::any_of(
          items, [&](const Item& item) { return item.names(interface, at.address); });
      if (is_named) named.push_back({i, at.address, at.prefix});
    }
  }
  std::ranges::stable_sort(named, {}, [](const Candidate& at) { return at.address.family; });
  return named;
}

std::string refusal(const HostNetwork& host, std::span<const Item> items,
                    std::span<const std::string> named) {
  std::string why = "has no such interface";
  for (const Item& item : items) {
    const auto at = std::ranges::find_if(
        host.interfaces, [&](const Interface& interface) { return item.names(interface); });
    if (at == host.interfaces.end()) continue;
    why = "has " + at->name + ", but it " + (at->up && at->running ? "has no address" : "is down");
  }
  return flag_with(named) + ": host " + host.host + " " + why + "; its interfaces are " +
         describe(host.interfaces) + "; name one for every host, separated by commas";
}

}  // namespace

tl::expected<NetworkChoice, std::string> choose_named(std::span<const HostNetwork> hosts,
                                                      std::span<const std::string> named) {
  const auto items = parse_items(named);
  if (!items) return tl::unexpected(items.error());
  std::vector<std::vector<Candidate>> used;
  for (const HostNetwork& host : hosts) {
    used.push_back(named_of(host, *items));
    if (used.back().empty()) return tl::unexpected(refusal(host, *items, named));
    const bool only_loopback = std::ranges::all_of(used.back(), [&](const Candidate& candidate) {
      return host.interfaces[candidate.interface].loopback;
    });
    if (only_loopback && host.stack != hosts.front().stack) {
      return tl::unexpected(flag_with(named) + ": host " + host.host + " is another machine than " +
                            hosts.front().host +
                            ", which loopback does not reach; its interfaces are " +
                            describe(host.interfaces));
    }
  }
  for (const Item& item : *items) {
    const bool somewhere = std::ranges::any_of(hosts, [&](const HostNetwork& host) {
      return std::ranges::any_of(host.interfaces,
                                 [&](const Interface& interface) { return item.names(interface); });
    });
    if (!somewhere) {
      return tl::unexpected(flag_with(named) + ": no host has " + in_quotes(item.text) + "; host " +
                            hosts.front().host + " has " + describe(hosts.front().interfaces));
    }
  }
  return make_choice(hosts, used);
}

}  // namespace hora::launch
