/// Which nodes node 0 has, and which it still waits for.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/rendezvous/messages.h"

namespace hora::launch {

/// Pure. Thread rule: one thread at a time.
class Roster {
 public:
  /// A node's number here, in order of arrival; node 0's is 0.
  using Ticket = std::size_t;

  Roster(JoinRequest own, std::string own_address);

  /// The error says why the job cannot start: two nodes of one rank, another number of nodes,
  /// another version. It names both hosts, and is for all nodes. Not called when complete().
  tl::expected<Ticket, std::string> add(JoinRequest request, std::string address);
  /// A node that has gone before all were there: it may come again.
  void remove(Ticket ticket);

  bool complete() const { return members_.size() == static_cast<std::size_t>(own().nodes); }
  /// "nodes 2, 3 of 4"; where nodes have no ranks before all are there, "2 of 4 nodes".
  std::string missing() const;

  /// By node rank; when complete().
  std::vector<Ticket> order() const;
  std::vector<Node> nodes() const;
  Node own_node() const { return node_of(members_.at(0)); }

 private:
  struct Member {
    JoinRequest request;
    std::string address;
  };

  static Node node_of(const Member& member);
  const JoinRequest& own() const { return members_.at(0).request; }
  std::string disagreement(const Member& member) const;

  std::map<Ticket, Member> members_;
  Ticket next_ = 0;
};

}  // namespace hora::launch
