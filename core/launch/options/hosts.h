/// The hosts of a job, how many ranks each may take, and which ranks run where; and where nodes
/// meet that are started one by one (--rendezvous). Pure.
///
/// A list (-H) is "a:2,b"; a hostfile has a host a line, "a slots=2" or "a:2", with comments after
/// `#`. A host has the sum of its slots: one for each time that it is named without a number.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

inline constexpr int kMostRanks = 65536;

struct HostSlots {
  std::string name;  ///< as the user wrote it: a name or an IPv4 address
  int slots = 1;
  /// False where the user has not said how many: such a host takes more where -np asks for more.
  bool counted = true;
  bool operator==(const HostSlots&) const = default;
};

/// Consecutive ranks on one host.
struct HostRanks {
  std::string name;
  int first = 0;
  int ranks = 0;
  bool operator==(const HostRanks&) const = default;
};

/// Errors name the host, what is wrong with it, and what was expected.
tl::expected<std::vector<HostSlots>, std::string> parse_host_list(std::string_view list);

/// `text` is the content of the file `path`; errors begin with "path:line: ".
tl::expected<std::vector<HostSlots>, std::string> parse_hostfile(std::string_view text,
                                                                 std::string_view path);

int total_slots(std::span<const HostSlots> hosts);

/// Fills host by host, in their order. Ranks beyond all slots go in even shares to the hosts that
/// are not counted or, with `oversubscribe`, to all. Hosts that get no rank are left out. The error
/// says what the hosts have and what to do.
tl::expected<std::vector<HostRanks>, std::string> lay_out_ranks(std::span<const HostSlots> hosts,
                                                                int np, bool oversubscribe);

/// An address of node 0, or a folder that all nodes share.
struct RendezvousPlace {
  std::string host;        ///< empty: a folder
  std::uint16_t port = 0;  ///< 0 is good for one node only
  std::string folder;      ///< absolute; empty: an address
  bool in_folder() const noexcept { return !folder.empty(); }
  bool operator==(const RendezvousPlace&) const = default;
};

/// "file:///folder", "tcp://host:port", or torchrun's "host[:port]"; without a port 29400, as
/// there.
tl::expected<RendezvousPlace, std::string> parse_rendezvous(std::string_view url);

std::string to_url(const RendezvousPlace& rendezvous);

}  // namespace hora::launch
