/// Which addresses of the hosts reach each other, as the probe has found.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <vector>

#include "core/launch/network/interfaces.h"

namespace hora::launch {

/// An address by which other hosts may reach this one.
struct Candidate {
  std::size_t interface = 0;  ///< index into HostNetwork::interfaces
  IpAddress address;
  int prefix = 0;

  bool operator==(const Candidate&) const = default;
};

/// The candidates of a host: the addresses of its interfaces that are up, without loopback and
/// without IPv6's addresses of one link. Their order is that of the interfaces.
std::vector<Candidate> candidates_of(const HostNetwork& host);

/// The hosts that `host` tries to reach: all others where there are few, else those a power of two
/// away, round the circle. The relation is symmetric, and joins all hosts.
std::vector<std::size_t> probe_partners(std::size_t host, std::size_t hosts);

/// Hosts and candidates by their indices.
class Reachability {
 public:
  /// From `candidate` of `host` a question went to `peer_candidate` of `peer`, and its answer came.
  void add(std::size_t host, std::size_t candidate, std::size_t peer, std::size_t peer_candidate) {
    pairs_.insert({host, candidate, peer, peer_candidate});
  }
  /// Whether that holds for questions of both.
  bool mutual(std::size_t host, std::size_t candidate, std::size_t peer,
              std::size_t peer_candidate) const {
    return pairs_.contains({host, candidate, peer, peer_candidate}) &&
           pairs_.contains({peer, peer_candidate, host, candidate});
  }
  bool empty() const { return pairs_.empty(); }

 private:
  std::set<std::array<std::size_t, 4>> pairs_;
};

}  // namespace hora::launch
