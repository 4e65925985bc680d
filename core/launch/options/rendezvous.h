/// Where the nodes of a job meet that are started one by one (--rendezvous, MASTER_ADDR). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace hora::launch {

inline constexpr int kMasterPort = 29500;  ///< torchrun's --master-port

/// An address of node 0, or a folder that all nodes share.
struct RendezvousPlace {
  std::string host;  ///< without brackets; empty: a folder
  std::uint16_t port =
      0;               ///< 1 to 65535; 0, which parse_endpoint() takes, is good for one node only
  std::string folder;  ///< absolute; empty: an address
  bool in_folder() const noexcept { return !folder.empty(); }
  bool operator==(const RendezvousPlace&) const = default;
};

/// "tcp://host:port" or "file:///folder"; the host of a URL may be an IPv6 address in brackets.
tl::expected<RendezvousPlace, std::string> parse_rendezvous(std::string_view url);

/// torchrun's "host[:port]"; without a port 29400, as there.
tl::expected<RendezvousPlace, std::string> parse_endpoint(std::string_view endpoint);

/// What tells jobs apart that meet in one folder, and becomes the name of files there: up to 64
/// letters, digits and `._-`, the first a letter or digit.
bool is_rendezvous_id(std::string_view id) noexcept;

std::string to_url(const RendezvousPlace& rendezvous);

/// What a cluster's tools (Kubernetes operators, sbatch scripts) tell each node's process.
struct NodeInEnvironment {
  RendezvousPlace rendezvous;
  int nnodes = 1;
  int node_rank = 0;
  bool operator==(const NodeInEnvironment&) const = default;
};

/// MASTER_ADDR and MASTER_PORT (29500 where unset); nothing where the former is unset.
tl::expected<std::optional<RendezvousPlace>, std::string> master_in_environment(
    std::span<const char* const> environment);

/// From these, and NNODES with NODE_RANK, else WORLD_SIZE with RANK: one process a node, as for
/// torchrun. Nothing where one of them is unset. `environment` has entries "NAME=VALUE", as
/// `environ`. Errors name the variable.
tl::expected<std::optional<NodeInEnvironment>, std::string> rendezvous_from_environment(
    std::span<const char* const> environment);

}  // namespace hora::launch
