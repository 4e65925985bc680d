#include "core/launch/rendezvous/roster.h"

#include <algorithm>
#include <set>
#include <utility>

namespace hora::launch {
namespace {

constexpr std::size_t kShownNodes = 16;

}  // namespace

Roster::Roster(JoinRequest request, std::string own_address) {
  if (request.node_rank) request.node_rank = 0;
  members_.emplace(next_++, Member{std::move(request), std::move(own_address)});
}

Node Roster::node_of(const Member& member) {
  return {member.request.host, member.address, member.request.ranks};
}

tl::expected<Roster::Ticket, std::string> Roster::add(JoinRequest request, std::string address) {
  Member member{std::move(request), std::move(address)};
  if (std::string why = disagreement(member); !why.empty()) return tl::unexpected(std::move(why));
  members_.emplace(next_, std::move(member));
  return next_++;
}

void Roster::remove(Ticket ticket) {
  members_.erase(ticket);
}

std::string Roster::disagreement(const Member& member) const {
  const JoinRequest& request = member.request;
  const std::string other = "host " + request.host + " (" + member.address + ")",
                    first = "host " + own().host;
  if (request.version != own().version) {
    return other + " has hora " + request.version + ", " + first + " has " + own().version +
           "; install the same version on all hosts";
  }
  if (request.job != own().job) {
    return other + " was started for the job " + request.job + ", " + first + " for " + own().job +
           "; give each job a place of its own to meet";
  }
  if (request.nodes != own().nodes) {
    return other + " was started with --nnodes " + std::to_string(request.nodes) + ", " + first +
           " with --nnodes " + std::to_string(own().nodes) + "; give the same number on all nodes";
  }
  if (request.node_rank.has_value() != own().node_rank.has_value()) {
    const bool given = request.node_rank.has_value();
    return (given ? other : first) + " was started with --node-rank, " + (given ? first : other) +
           " without; give it on all nodes or on none";
  }
  if (!request.node_rank) return {};
  if (*request.node_rank >= own().nodes) {
    return other + " was started with --node-rank " + std::to_string(*request.node_rank) + " of " +
           std::to_string(own().nodes) + " nodes; node ranks are 0 to " +
           std::to_string(own().nodes - 1);
  }
  for (const auto& [ticket, present] : members_) {
    if (present.request.node_rank == request.node_rank) {
      return "two nodes have the same rank: host " + present.request.host + " (" + present.address +
             ") and " + other + " were both started with --node-rank " +
             std::to_string(*request.node_rank) + "; give each node its own, 0 to " +
             std::to_string(own().nodes - 1);
    }
  }
  return {};
}

std::string Roster::missing() const {
  const std::string total = std::to_string(own().nodes);
  const std::size_t count = static_cast<std::size_t>(own().nodes) - members_.size();
  if (!own().node_rank) {
    return std::to_string(count) + " of " + total + (own().nodes == 1 ? " node" : " nodes");
  }
  std::set<int> present;
  for (const auto& [ticket, member] : members_) present.insert(*member.request.node_rank);
  std::string list;
  std::size_t shown = 0;
  for (int rank = 0; rank < own().nodes; ++rank) {
    if (present.contains(rank)) continue;
    if (++shown > kShownNodes) break;
    list += (list.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (count > kShownNodes) list += " and " + std::to_string(count - kShownNodes) + " more";
  return (count == 1 ? "node " : "nodes ") + list + " of " + total;
}

std::vector<Roster::Ticket> Roster::order() const {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, member] : members_) tickets.push_back(ticket);
  if (own().node_rank) {
    std::ranges::sort(tickets, {},
                      [&](Ticket ticket) { return members_.at(ticket).request.node_rank; });
  }
  return tickets;
}

std::vector<Node> Roster::nodes() const {
  std::vector<Node> nodes;
  for (const Ticket ticket : order()) nodes.push_back(node_of(members_.at(ticket)));
  return nodes;
}

}  // namespace hora::launch
