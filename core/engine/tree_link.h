/// The transport of negotiation between node leaders.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace hora {

/// Whole messages between node leaders, in order between each pair. Failures throw
/// Error(transport). Thread rule: the thread that holds the engine's lock.
class TreeLink {
 public:
  struct Received {
    int node = 0;  ///< the sender's node index
    std::vector<std::byte> bytes;
  };

  virtual ~TreeLink() = default;
  /// Sends a copy of `message` to the leader of `node`. Never blocks.
  virtual void send(int node, std::span<const std::byte> message) = 0;
  /// The next message from any node, without blocking.
  virtual std::optional<Received> receive() = 0;
  /// True when every message sent so far has left; makes progress.
  virtual bool flushed() = 0;
};

}  // namespace hora
