#include "core/launch/network/interfaces.h"

#include <hora/error.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fstream>
#include <memory>
#include <system_error>

#include "core/launch/control/unique_fd.h"

namespace hora::launch {
namespace {

int prefix_of(const IpAddress& mask) {
  int bits = 0;
  for (const std::uint8_t byte : mask.bytes) bits += std::popcount(byte);
  return bits;
}

/// A number in a file of the kernel, 0 where there is none: reading the speed of a bridge or of an
/// interface that is down fails, and of an unknown speed it gives -1.
int number_in(const std::string& path) {
  std::ifstream file(path);
  long number = 0;
  if (!(file >> number) || number < 0 || number > 100'000'000) return 0;
  return static_cast<int>(number);
}

/// In bytes; 0 where the kernel does not say.
int mtu_of(const std::string& name) {
  const UniqueFd any_socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (!any_socket || ::ioctl(any_socket.get(), SIOCGIFMTU, &request) != 0) return 0;
  return request.ifr_mtu;
}

Interface describe_interface(const std::string& name, unsigned flags) {
  Interface interface;
  interface.name = name;
  interface.up = (flags & IFF_UP) != 0;
  interface.running = (flags & IFF_RUNNING) != 0;
  interface.loopback = (flags & IFF_LOOPBACK) != 0;
  interface.mtu = mtu_of(name);
  // /sys may be that of another network namespace, where this name is another interface.
  const std::string folder = "/sys/class/net/" + name + "/";
  if (number_in(folder + "ifindex") == static_cast<int>(::if_nametoindex(name.c_str()))) {
    interface.hardware = ::access((folder + "device").c_str(), F_OK) == 0;
    interface.speed = number_in(folder + "speed");
  }
  return interface;
}

std::string state_of(const Interface& interface) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const InterfaceAddress& at : interface.addresses) {
    if (at.address.family == Family::ipv6 && at.address.is_link_local()) continue;
    add(to_string(at.address) + "/" + std::to_string(at.prefix));
  }
  if (text.empty()) add("no address");
  if (!interface.up || !interface.running) add("down");
  return text;
}

}  // namespace

std::vector<Interface> this_host_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error(ErrorCode::transport, "this host's network interfaces cannot be listed: " +
                                          std::generic_category().message(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const std::string name = entry->ifa_name;
    auto at = std::ranges::find(interfaces, name, &Interface::name);
    if (at == interfaces.end()) {
      interfaces.push_back(describe_interface(name, entry->ifa_flags));
      at = std::prev(interfaces.end());
    }
    const auto address = address_of(entry->ifa_addr);
    const auto mask = address_of(entry->ifa_netmask);
    if (!address) continue;
    at->addresses.push_back({*address, mask ? prefix_of(*mask) : address->bits()});
  }
  return interfaces;
}

std::string this_network_stack() {
  std::string start;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  struct stat status {};
  if (::stat("/proc/thread-self/ns/net", &status) != 0) status = {};
  return start + "/" + std::to_string(status.st_dev) + "/" + std::to_string(status.st_ino);
}

std::string describe(std::span<const Interface> interfaces) {
  std::string text;
  for (const Interface& interface : interfaces) {
    text += (text.empty() ? "" : ", ") + interface.name + " (" + state_of(interface) + ")";
  }
  return text.empty() ? "none" : text;
}

namespace {

constexpr std::size_t kFewHosts = 16;

}  // namespace

std::vector<Candidate> candidates_of(const HostNetwork& host) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < host.interfaces.size(); ++i) {
    const Interface& interface = host.interfaces[i];
    if (!interface.usable() || interface.loopback) continue;
    for (const InterfaceAddress& at : interface.addresses) {
      const bool of_one_link = at.address.family == Family::ipv6 && at.address.is_link_local();
      if (of_one_link || at.address.is_loopback() || at.address.is_unspecified()) continue;
      candidates.push_back({i, at.address, at.prefix});
    }
  }
  return candidates;
}

std::vector<std::size_t> probe_partners(std::size_t host, std::size_t hosts) {
  std::set<std::size_t> partners;
  if (hosts <= kFewHosts) {
    for (std::size_t peer = 0; peer < hosts; ++peer) partners.insert(peer);
  } else {
    for (std::size_t step = 1; step < hosts; step *= 2) {
      partners.insert((host + step) % hosts);
      partners.insert((host + hosts - step) % hosts);
    }
  }
  partners.erase(host);
  return {partners.begin(), partners.end()};
}

}  // namespace hora::launch
