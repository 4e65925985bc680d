/// A job without ssh: a horarun is started on each node, they meet, and from then on each of the
/// others has one connection to node 0's, which alone listens, until all have come.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/control/channel.h"
#include "core/launch/options/hosts.h"

namespace hora::launch {

/// Options of the horarun of one node, about the rendezvous and the job; as its command line allows
/// them.
struct RendezvousOptions {
  RendezvousPlace place;
  int nodes = 1;                 ///< --nnodes
  std::optional<int> node_rank;  ///< --node-rank; absent on all nodes: in order of arrival
  int ranks = 1;                 ///< --nproc-per-node, of this node
  /// --rendezvous-id: tells jobs in one folder apart, and is compared.
  std::string job = "job";
  std::string host;  ///< this host's name, for messages: it need not resolve
  std::chrono::milliseconds timeout{600'000};       ///< --start-timeout
  std::chrono::milliseconds report_every{5000};     ///< who waits says for whom
  std::chrono::milliseconds handshake_limit{5000};  ///< for a connection to say which node it is
  /// Readable when the user wants to stop (a signalfd, a pipe): ErrorCode::shut_down; -1: none.
  int stop_descriptor = -1;
  /// Takes one line, without its end: who waits for whom, who was refused.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

struct Node {
  std::string host;
  std::string address;  ///< an IP address as node 0 sees it; without, where this is node 0
  int ranks = 1;
  Connection connection = {};  ///< its end is that of the node; none to this node itself
};

struct NodesMet {
  int node_rank = 0;  ///< this node's
  /// On node 0 all, by node rank; on the others node 0 alone, of unknown `ranks`.
  std::vector<Node> nodes;
};

/// Returns when all nodes have met, or throws Error, after which nothing is left behind; nodes that
/// contradict each other all get the same text. Blocks, and ignores SIGPIPE from then on.
NodesMet meet(const RendezvousOptions& options, const SecretKey& token);

}  // namespace hora::launch
