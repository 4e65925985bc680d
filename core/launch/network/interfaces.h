/// The network interfaces of this host.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/launch/network/address.h"

namespace hora::launch {

struct InterfaceAddress {
  IpAddress address;
  int prefix = 0;  ///< bits of its subnet

  bool operator==(const InterfaceAddress&) const = default;
};

struct Interface {
  std::string name;
  bool up = false;
  bool running = false;  ///< has a carrier
  bool loopback = false;
  bool hardware = false;  ///< a device, not a bridge, tunnel or pair made by software
  int mtu = 0;            ///< bytes
  int speed = 0;          ///< Mbit/s, 0 where unknown
  std::vector<InterfaceAddress> addresses;

  bool usable() const { return up && running && !addresses.empty(); }
  bool operator==(const Interface&) const = default;
};

/// What the choice of interfaces knows of one host.
struct HostNetwork {
  std::string host;
  /// Equal where two hosts of the job share one network stack: one machine under two names.
  std::string stack;
  std::vector<Interface> interfaces;

  bool operator==(const HostNetwork&) const = default;
};

/// This host's interfaces, in the kernel's order. Throws Error(transport) where the system does not
/// give them. Takes below 10 ms.
std::vector<Interface> this_host_interfaces();

/// Names this operating system's start and this thread's network namespace.
std::string this_network_stack();

/// "eth0 (10.77.0.1/24), docker0 (172.17.0.1/16, down), ib0 (no address)"; "none". Without
/// IPv6's addresses of one link.
std::string describe(std::span<const Interface> interfaces);

}  // namespace hora::launch
