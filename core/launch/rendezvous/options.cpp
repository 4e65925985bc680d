#include "core/launch/rendezvous/options.h"

#include <hora/printable.h>

#include <utility>

namespace hora::launch {
namespace {

tl::unexpected<std::string> refused(std::string why) {
  return tl::unexpected(std::move(why));
}

}  // namespace

tl::expected<void, std::string> check(const RendezvousOptions& options) {
  if (options.nodes < 1 || options.nodes > kMostNodes) {
    return refused("--nnodes " + std::to_string(options.nodes) + ": allowed: 1 to " +
                   std::to_string(kMostNodes));
  }
  if (options.node_rank && (*options.node_rank < 0 || *options.node_rank >= options.nodes)) {
    return refused("--node-rank " + std::to_string(*options.node_rank) + ": with --nnodes " +
                   std::to_string(options.nodes) + " node ranks are 0 to " +
                   std::to_string(options.nodes - 1));
  }
  if (options.ranks < 1 || options.ranks > kMostNodes) {
    return refused("--nproc-per-node " + std::to_string(options.ranks) + ": allowed: 1 to " +
                   std::to_string(kMostNodes));
  }
  if (!is_rendezvous_id(options.job)) {
    return refused("--rendezvous-id " + in_quotes(options.job) +
                   ": allowed: up to 64 letters, digits and ._- , the first a letter or digit");
  }
  return {};
}

}  // namespace hora::launch
