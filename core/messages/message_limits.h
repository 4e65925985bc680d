/// The limits of numbers in a peer's message. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/topology.h"

namespace hora::internal {

/// Of one process set. Every message that comes from a peer goes through decode() with these;
/// after that the following holds, and is not checked again:
/// - the slot of every id is below `id_capacity`;
/// - every rank, and the root of every broadcast, is one of `ranks`;
/// - every signature is one that a user can submit: its shape can be counted, in bytes as in rows,
///   and its first extent is kAnyExtent where it may differ by rank, and only there;
/// - of ids that are ready either each has its last rank, or none;
/// - of ranks that lack a name either each has a remark, or none;
/// - a decision gives no name two ids, and no slot to two names, and says for every name it assigns
///   where `locations` local ranks keep it (but not whether anything is there: NodeMemory does).
struct MessageLimits {
  int id_capacity = 0;
  std::vector<int> ranks;     ///< world ranks, ascending
  std::size_t locations = 0;  ///< 0 between nodes; in a node's log, its ranks
};

MessageLimits message_limits(const Topology& topology, int id_capacity, std::size_t locations);

/// The first invalid thing in a message; empty where there is none.
std::string problem_in(const Message& message, const MessageLimits& limits);
std::string problem_in(const Decision& decision, const MessageLimits& limits);

/// As decode(bytes), and within the limits.
tl::expected<Message, std::string> decode(std::span<const std::byte> bytes,
                                          const MessageLimits& limits);

}  // namespace hora::internal
